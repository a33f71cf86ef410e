# Everything else is CMake's: see CONTRIBUTING.md.
.PHONY: demo test packages
demo:
	@examples/demo.sh
test:
	@test/run.sh
packages:
	@packaging/make_packages.sh
