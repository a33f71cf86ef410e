// libcuda.so and libnvidia-ml.so of a wheel, which cannot contain symbolic links. They only depend on libcuda.so.1 and
// libnvidia-ml.so.1, so that dlsym() finds the symbols of these.
