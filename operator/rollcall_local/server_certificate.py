"""The certificate of a run's API server: made at each start, and believed by its kubeconfig alone.

kubectl sends its token to no server without one.
"""

import base64
import os
import ssl
from pathlib import Path

from rollcall_operator.control.certificate_authority import CERTIFICATE, KEY, CertificateAuthority


def server_tls(host: str, file: Path) -> tuple[ssl.SSLContext, str]:
    """What a server at the address `host` listens with, and the authority (PEM) to believe.

    `file` gets the certificate with its key, for its owner alone.
    """
    authority = CertificateAuthority.new()
    issued = authority.issue(host)
    file.unlink(missing_ok=True)
    with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as out:
        out.write(base64.b64decode(issued[CERTIFICATE]) + base64.b64decode(issued[KEY]))
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(file)
    return context, authority.certificate
