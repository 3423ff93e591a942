"""Pure logic: values in, values out. Imports the standard library, itself and errors."""
