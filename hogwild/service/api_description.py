"""OpenAPI of the service: the errors and the token that all routes have in common. Pure: a schema in, a schema out."""

from typing import Any

SECURITY = {"token": {"type": "http", "scheme": "bearer", "description": "The file `token` of the state folder."}}
PROBLEM = {
    "type": "object",
    "description": "An error as RFC 9457 has it; docs/errors.md explains each `error_code`.",
    "required": ["title", "status", "detail", "error_code"],
    "properties": {
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "error_code": {"type": "string"},
        "problems": {
            "type": "array",
            "description": "Errors of a job file, each with its place; line 0: from the command line.",
            "items": {
                "type": "object",
                "required": ["source", "line", "column", "path", "message", "code"],
                "properties": {
                    **{name: {"type": "integer", "minimum": 0} for name in ("line", "column")},
                    **{name: {"type": "string"} for name in ("source", "path", "message", "code", "excerpt")},
                },
            },
        },
    },
}
ERRORS = {
    "400": "The request is not HTTP or JSON.",
    "401": "It has no valid token.",
    "403": "Another host or another site asks.",
    "404": "There is no such job, run or file.",
    "409": "The state of the job does not allow it, or its files are damaged.",
    "413": "The body has more than 16 MiB.",
    "422": "A value is not allowed.",
    "503": "The service is ending.",
    "507": "The disk is full, or cannot be written.",
}
METHODS = {"get", "post", "put", "patch", "delete"}


def described(schema: dict[str, Any]) -> dict[str, Any]:
    """Add the errors and the token of every route to a schema, in place; return it. A second time changes nothing."""
    components = schema.setdefault("components", {})
    schemas = components.setdefault("schemas", {})
    for name in ("HTTPValidationError", "ValidationError"):  # FastAPI's own errors, which are never sent
        schemas.pop(name, None)
    schemas["Problem"] = PROBLEM
    components["securitySchemes"] = SECURITY
    schema["security"] = [{"token": []}]
    content = {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}}
    errors = {status: {"description": words, "content": content} for status, words in ERRORS.items()}
    for path in schema["paths"].values():
        for method in METHODS & path.keys():
            path[method]["responses"] |= errors
    return schema
