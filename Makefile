# Everything else is CMake's: see CONTRIBUTING.md.
.PHONY: demo test test-long packages
demo:
	@examples/demo.sh
test:
	@test/run.sh
test-long:
	@test/long/run
packages:
	@packaging/make_packages.sh
