// libcuda.so and libnvidia-ml.so in a wheel, which has no links: nothing but that they need libcuda.so.1 and
// libnvidia-ml.so.1, in which dlsym() then finds what it is asked for.
