"""The fixtures of the engine's tests: a store in memory and on a file, a store on a file, and tables to drop."""

from tests.kit.sessions import either_store, file_store, some_tables

store, on_file, tables = either_store, file_store, some_tables
