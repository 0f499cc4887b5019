"""How a kubelet expands references in commands, arguments and the values of variables: a model of
third_party/forked/golang/expansion/expand.go of k8s.io/kubernetes v1.36.3.
"""

from collections.abc import Mapping


def expand(text: str, values: Mapping[str, str]) -> str:
    """`text` with each `$(NAME)` as its value, and `$$` as `$`; one pass, from left to right."""
    result, at = [], 0
    while at < len(text):
        rest = text[at + 1 :]
        if text[at] != "$" or not rest:
            result.append(text[at])
            at += 1
        elif rest[0] == "$":
            result.append("$")
            at += 2
        elif rest[0] == "(" and ")" in rest:
            name = rest[1 : rest.index(")")]
            result.append(values.get(name, f"$({name})"))
            at += len(name) + 3
        else:
            result.append("$" + rest[0])
            at += 2
    return "".join(result)
