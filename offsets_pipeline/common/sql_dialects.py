"""What Spark SQL and DuckDB's SQL write differently: placeholders of the views, whose texts run in both.

Hints of Spark are comments in DuckDB. Both have SEMI JOIN and ANTI JOIN, and aliases that later columns use.
"""

#: Each placeholder in Spark and in DuckDB.
_FUNCTIONS = {
    "explode": ("explode", "unnest"),
    "array": ("array", "list_value"),
    "size": ("size", "len"),
    "struct": ("struct", "struct_pack"),
    "row": ("struct", "row"),  # a struct whose members have no names
    "micros": ("unix_micros", "epoch_us"),  # since 1970
    "json_text": ("get_json_object", "json_extract_string"),
    "json_object": ("get_json_object", "json_extract"),
    "texts": ("map<string,string>", '"MAP(VARCHAR, VARCHAR)"'),  # a type, for from_json
}
SPARK = {name: in_spark for name, (in_spark, _) in _FUNCTIONS.items()}
DUCKDB = {name: in_duckdb for name, (_, in_duckdb) in _FUNCTIONS.items()}
