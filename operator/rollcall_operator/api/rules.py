"""One definition of a rule for both ends: a CEL expression in the CRD, a check in Python.

The API server refuses a bad manifest with the CEL rule's message; `rollcall-operator plan`
gives the same message without a cluster. A rule with `allows` compares with the stored object
(`oldSelf`); one without `cel` is enforced there by the schema itself.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from pydantic import (
    BaseModel,
    ConfigDict,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    model_validator,
)
from pydantic.alias_generators import to_camel
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

VALIDATIONS = "x-kubernetes-validations"


@dataclass(frozen=True, slots=True)
class Rule:
    """`message` says what is wrong and what to do; `path` is the field below, such as ".name".

    `holds` takes a value, `allows` what is there and what is to take its place.
    """

    message: str
    cel: str = ""
    holds: Callable[[Any], bool] | None = None
    path: str = ""
    allows: Callable[[Any, Any], bool] | None = None

    def check(self, value: Any) -> None:
        """Raise pydantic's error if the value breaks the rule."""
        if self.holds is not None and not self.holds(value):
            raise PydanticCustomError("rule", "{text}", {"text": self.message, "path": self.path})

    def as_cel(self) -> dict[str, str]:
        """The entry of x-kubernetes-validations."""
        entry = {"rule": self.cel, "message": self.message}
        return {**entry, "fieldPath": self.path} if self.path else entry

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        """Let the rule stand in an Annotated type of a scalar or a list."""

        def checked(value: Any) -> Any:
            self.check(value)
            return value

        return core_schema.no_info_after_validator_function(checked, handler(source))

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        """Add the CEL rule to the field's schema."""
        return add_rules(handler(schema), (self,))


def add_rules(schema: dict[str, Any], rules: tuple[Rule, ...]) -> dict[str, Any]:
    """Append the rules that have a CEL expression to a JSON schema."""
    entries = [rule.as_cel() for rule in rules if rule.cel]
    if entries:
        schema[VALIDATIONS] = [*schema.get(VALIDATIONS, ()), *entries]
    return schema


class Model(BaseModel):
    """Base of all API types: camelCase on the wire, nothing unknown, nothing coerced."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        populate_by_name=True,
        extra="forbid",
        frozen=True,
        strict=True,
        use_attribute_docstrings=True,
    )
    RULES: ClassVar[tuple[Rule, ...]] = ()

    @model_validator(mode="after")
    def _check_rules(self) -> "Model":
        for rule in self.RULES:
            rule.check(self)
        return self

    @classmethod
    def __get_pydantic_json_schema__(
        cls, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        """Add the model's CEL rules to its schema."""
        return add_rules(handler.resolve_ref_schema(handler(schema)), cls.RULES)
