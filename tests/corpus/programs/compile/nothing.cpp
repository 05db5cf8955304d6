// tries: be empty
// expect: compile_error
