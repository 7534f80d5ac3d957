"""What Spark SQL and DuckDB's SQL write differently: placeholders of the views, whose texts run in both.

Hints of Spark are comments in DuckDB. Both have SEMI JOIN and ANTI JOIN, and aliases that later columns use.
"""

SPARK = {
    "explode": "explode",
    "array": "array",
    "size": "size",
    "struct": "struct",
    "row": "struct",
    "micros": "unix_micros",
    "json_text": "get_json_object",
    "json_object": "get_json_object",
    "texts": "map<string,string>",  # for from_json
}
DUCKDB = {
    "explode": "unnest",
    "array": "list_value",
    "size": "len",
    "struct": "struct_pack",
    "row": "row",
    "micros": "epoch_us",
    "json_text": "json_extract_string",
    "json_object": "json_extract",
    "texts": '"MAP(VARCHAR, VARCHAR)"',
}
