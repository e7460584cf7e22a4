"""`where`: one SQL predicate, checked, evaluated and bounded."""
