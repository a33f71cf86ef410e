# What does not run under the sanitizers, each with its reason: everything else does (cmake/SanitizedTests.cmake).
set(both SANITIZERS asan tsan)

gpuwire_not_sanitized(${both} TESTS confinement_test
  BECAUSE "it looks at which system calls end a process; the sanitizers' runtimes make calls of their own")
gpuwire_not_sanitized(${both} TESTS session_borrowed_test
  BECAUSE "it loads a second copy of the session's library, whose symbols the sanitizers' runtimes would make one")
gpuwire_not_sanitized(${both} TESTS stub_library_test nvml_description packaging_glibc packaging_commands
  packaging_manual packaging_documents packaging_make packaging_packages packaging_life_cycle packaging_guide
  packaging_containers packaging_recipes
  BECAUSE "they look at the libraries and packages that users get, which need nothing of a sanitizer's")
gpuwire_not_sanitized(${both} TESTS format tidy layers callbacks mirror compatibility_table gpu_runner api_description
  codegen_golden codegen_headers server_ledger_memory_calls suites_cuda_samples_outcomes support_loopback_ports
  slurm_job slurm
  BECAUSE "they look at sources and descriptions, or run scripts beside packages that are installed")
gpuwire_not_sanitized(${both} TESTS bench_run bench_slow_link bench_network bench_sessions bench_plot
  sharing_faults
  BECAUSE "what they measure is not what is measured under a sanitizer; the suites run the same code")
gpuwire_not_sanitized(${both} TESTS client_memory_test
  BECAUSE "it maps memory at addresses that the runtimes have")
gpuwire_not_sanitized(${both} TESTS end_to_end_modules
  BECAUSE "it looks at how much of a program is in memory, where the runtimes have their own")
gpuwire_not_sanitized(${both} TESTS end_to_end_leaks soak
  BECAUSE "they look at how much memory the server's processes have; the runtimes keep what was freed")
gpuwire_not_sanitized(${both} TESTS session_simulation session_simulation_shared_memory session_simulation_tls
  session_simulation_rdma
  BECAUSE "its fibers exchange what a processor keeps for each thread, which the runtimes follow; with threads it runs")
gpuwire_not_sanitized(${both} TESTS software_device_runtime_features software_device_separate_compilation
  software_device_per_thread_streams
  BECAUSE "CUDA programs without a server: examples and end_to_end run the device under a sanitizer")
gpuwire_not_sanitized(${both} TESTS configuration_fuzz
  BECAUSE "toml++ reaches what it calls unreachable where a word begins with a letter beyond ASCII")
# --- under the thread sanitizer alone ---------------------------------------------------------------------------------
gpuwire_not_sanitized(SANITIZERS tsan TESTS server_worker_session_test hostile_worker_test server_broker_test
  server_metrics_test server_ledger_driver_test server_login_test server_keeper_test server_host_guard_test
  module_cache_test
  BECAUSE "they confine processes, all threads at once in handlers of a signal, or kill them: neither is followed. What
 these processes do with threads: server_worker_threads_test, server_gate_test, server_ipc_test, end_to_end_faults")
gpuwire_not_sanitized(SANITIZERS tsan TESTS software_device_driver_test software_engine_nvcc_test
  software_engine_ptx_test software_engine_arithmetic_test hostile end_to_end_sharing end_to_end_programs
  end_to_end_progress end_to_end_profile
  BECAUSE "kernels that watch words which others write race by the rules of C++ and not by those of the device")
gpuwire_not_sanitized(SANITIZERS tsan TESTS end_to_end_why end_to_end_queue end_to_end_tenants
  end_to_end_own_view end_to_end_web_page end_to_end_web_proxy end_to_end_web_tls end_to_end_reservations
  end_to_end_quotas end_to_end_two_gpus end_to_end_dedup end_to_end_monitoring end_to_end_restart end_to_end_chaos
  server_service_manager nvml_library nvidia_smi launcher_jax_test
  BECAUSE "they start servers or clients of this tree in ways of their own, or need the worker's memory where programs
 have none, which the runtime does not allow: docs/troubleshooting.md, the server's addresses are taken")
gpuwire_not_sanitized(SANITIZERS tsan TESTS end_to_end_idle
  BECAUSE "it counts how often processes wake, and the runtime has a thread of its own in each")
gpuwire_not_sanitized(SANITIZERS tsan TESTS client_driver_test differential end_to_end_resume end_to_end_rdma
  end_to_end_tls end_to_end_shared_memory
  BECAUSE "pinned, mapped and managed memory of their programs has to lie where the runtime lets nothing lie, and some
 of their kernels race as above. Roads, resumption and lanes: transport_test, session_test,
 session_simulation_threads")
foreach(example add_one vector_add reduction matmul_tiled streams_events pinned_async context_bound_modules
  context_free_library managed_symbol errors)
  gpuwire_not_sanitized(SANITIZERS tsan TESTS example_${example}_direct
    BECAUSE "the program is not built with it, and has the device in its own process")
endforeach()
