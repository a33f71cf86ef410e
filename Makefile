# Everything else is CMake's: see CONTRIBUTING.md.
.PHONY: demo test
demo:
	@examples/demo.sh
test:
	@test/run.sh
