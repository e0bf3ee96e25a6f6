"""What journals say: pure functions of tables and arrays, without input or output."""
