"""The grammar of filters and actions (semantics A §1.1, §1.2, §2).

For a text that does not follow it, Azure's words (semantics A §1.5).
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Final, Literal

from postbus.errors import InvalidArgument

if TYPE_CHECKING:
    from lark import Lark, Token, Tree

KEYWORDS: Final = frozenset(
    {
        *("AND", "ESCAPE", "EXISTS", "FALSE", "IN", "IS", "LIKE"),
        *("NOT", "NULL", "OR", "REMOVE", "SET", "TRUE"),
    }
)
"""Reserved in any case; a property with a reserved name is written in brackets."""

GRAMMAR: Final = r"""
filter: predicate
action: statement (_separator? statement)* ";"?

?predicate: conjunction
    | conjunction (_OR conjunction)+ -> any_of
?conjunction: denial
    | denial (_AND denial)+ -> all_of
?denial: condition
    | _NOT denial -> negation
?condition: sum (EQUALS | COMPARISON) sum -> comparison
    | property _IS _NULL -> is_null
    | property _IS _NOT _NULL -> is_not_null
    | sum _IN "(" sum ("," sum)* ")" -> membership
    | sum _NOT _IN "(" sum ("," sum)* ")" -> no_membership
    | sum _LIKE sum (_ESCAPE sum)? -> likeness
    | sum _NOT _LIKE sum (_ESCAPE sum)? -> no_likeness
    | _EXISTS "(" property ")" -> existence
    | "(" predicate ")"

?sum: product
    | sum (PLUS | MINUS) product -> calculation
?product: factor
    | product (TIMES | DIVIDED | MODULO) factor -> calculation
?factor: operand
    | (PLUS | MINUS) factor -> signed
?operand: "(" sum ")"
    | property -> property_value
    | IDENTIFIER "(" ")" -> function
    | IDENTIFIER "(" sum ")" -> function
    | PARAMETER -> parameter
    | INTEGER -> integer
    | FLOAT -> float
    | STRING -> string
    | _TRUE -> true
    | _FALSE -> false
    | _NULL -> null

property: IDENTIFIER -> user_property
    | DELIMITED -> user_property
    | IDENTIFIER "." IDENTIFIER -> scoped_property
    | IDENTIFIER "." DELIMITED -> scoped_property

statement: _SET property EQUALS sum -> set
    | _REMOVE property -> remove
_separator: ";" | ","

IDENTIFIER: /[^\W\d_]\w*/
DELIMITED: /\[(?:[^\]]|\]\])+\]/ | /"(?:[^"]|"")+"/
PARAMETER: /@\w+/
STRING: /'(?:[^']|'')*'/
FLOAT.2: /[0-9]+\.[0-9]*(?:[eE][+-]?[0-9]+)?/ | /\.[0-9]+(?:[eE][+-]?[0-9]+)?/ | /[0-9]+[eE][+-]?[0-9]+/
INTEGER: /[0-9]+/
EQUALS: "="
COMPARISON: /<>|!=|<=|>=|<|>/
PLUS: "+"
MINUS: "-"
TIMES: "*"
DIVIDED: "/"
MODULO: "%"
%ignore /\s+/
"""  # noqa: E501 - a terminal is one line

# Names in error texts for tokens that are no words.
_SHOWN: Final = {
    "$END": "EOF",
    "LPAR": "'('",
    "RPAR": "')'",
    "DOT": "'.'",
    "COMMA": "','",
    "SEMICOLON": "';'",
    "EQUALS": "'='",
    "PLUS": "'+'",
    "MINUS": "'-'",
    "TIMES": "'*'",
    "DIVIDED": "'/'",
    "MODULO": "'%'",
    "DELIMITED": "IDENTIFIER",
}
_EXPECTED_SHOWN_MAX: Final = 6
"""Azure's parser names the tokens it expected only if the list is short."""


def parse(text: str, start: Literal["filter", "action"]) -> Tree[Token]:
    """The tree of a text. Raises InvalidArgument."""
    from lark import UnexpectedCharacters, UnexpectedToken

    try:
        return _parser().parse(text, start)
    except UnexpectedToken as error:
        token = error.token
        details = f"syntax error, unexpected {_shown(token.type)}"
        if token.type == "$END":
            place = text.count("\n") + 1, len(text) - text.rfind("\n") - 1
            raise refusal("", *place, details + _expecting(error.accepts or set())) from None
        raise refused_token(token, details + _expecting(error.accepts or set())) from None
    except UnexpectedCharacters as error:
        details = "syntax error, unexpected character"
        raise refusal(error.char, error.line, error.column - 1, details) from None


def prepare() -> None:
    """Make ready for the first text. That takes longer than other clients can wait for a rule. So a
    namespace with topics does it on a thread of its own."""
    _parser()


def refused_token(token: Token, details: str) -> InvalidArgument:
    """A refusal for the content of this token."""
    return refusal(str(token), token.line or 1, (token.column or 1) - 1, details)


def refusal(token: str, line: int, column: int, details: str) -> InvalidArgument:
    """In Azure's words (semantics A §1.5). Lines count from 1, columns from 0."""
    return InvalidArgument(
        "There was an error parsing the SQL expression.\n"
        f"[Token line={line}, column={column}, Token in error= {token}, "
        f"Additional details= {details}]"
    )


@cache
def _parser() -> Lark:
    # Imported with the first SQL text, not with the module: a start must take less than a second.
    from lark import Lark

    declared = " ".join(f"_{word}" for word in sorted(KEYWORDS))
    return Lark(
        f"{GRAMMAR}\n%declare {declared}\n",
        start=["filter", "action"],
        parser="lalr",
        lexer="basic",
        lexer_callbacks={"IDENTIFIER": _keyword_or_name},
    )


def _keyword_or_name(token: Token) -> Token:
    word = token.upper()
    if word in KEYWORDS:
        return token.update(type=f"_{word}")
    # `\w` also takes numbers that are no digits, like "²".
    if not all(one == "_" or one.isalpha() or one.isdecimal() for one in token):
        raise refused_token(token, "syntax error, unexpected character")
    return token


def _shown(terminal: str) -> str:
    return _SHOWN.get(terminal, terminal.removeprefix("_"))


def _expecting(accepted: set[str]) -> str:
    # Backwards: in the only known text of Azure's, SET comes before REMOVE.
    names = sorted({_shown(terminal) for terminal in accepted}, reverse=True)
    if not names or len(names) > _EXPECTED_SHOWN_MAX:
        return ""
    return f", expecting {', or '.join(names)}"
