"""Names of EasyDeL's older interface: a mixture described by one object, and read by one call."""
