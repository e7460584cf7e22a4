"""The ground floor: modules that any part of the library may use. They import nothing of it but errors."""
