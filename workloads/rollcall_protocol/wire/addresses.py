"""Network addresses as they stand in URLs and in lists of donors."""


def host_port(host: str, port: int) -> str:
    """`host:port`; an IPv6 address is put in brackets (RFC 3986, section 3.2.2)."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
