#include "protocol/cuda_abi/private_tables.hpp"

#include <doctest/doctest.h>
#include <pthread.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <string>

namespace {

using namespace gpuwire::cuda_abi;

CUcontext current = nullptr;
std::string reported;

CUcontext context(uintptr_t number) { return reinterpret_cast<CUcontext>(number); }

CUresult fake_primary(CUcontext* out, CUdevice device) {
  if (device != 0) {
    return CUDA_ERROR_INVALID_DEVICE;
  }
  *out = context(0x1001);
  return CUDA_SUCCESS;
}

const PrivateTableHost& fake_host() {
  static const PrivateTableHost host{
      .driver_version = []() noexcept { return 13000; },
      .primary_context_handle = fake_primary,
      .current_context =
          [](CUcontext* out) {
            *out = current;
            return CUDA_SUCCESS;
          },
      .context_id =
          [](CUcontext context, unsigned long long* id) {
            *id = context == nullptr ? 0 : 5;
            return CUDA_SUCCESS;
          },
      .stream_id =
          [](CUcontext, CUstream stream, unsigned long long* id) {
            *id = reinterpret_cast<uintptr_t>(stream) * 10;
            return CUDA_SUCCESS;
          },
      .module_functions =
          [](CUcontext, CUmodule, std::vector<ModuleFunction>* out) {
            out->push_back({reinterpret_cast<CUfunction>(0x5001), "first"});
            out->push_back({reinterpret_cast<CUfunction>(0x5002), "second"});
            return CUDA_SUCCESS;
          },
      .load_module =
          [](CUmodule* module, const void* image) {
            *module = image ? reinterpret_cast<CUmodule>(0x6001) : nullptr;
            return image ? CUDA_SUCCESS : CUDA_ERROR_INVALID_IMAGE;
          },
      .self_test_devices =
          [](std::vector<SelfTestDevice>* out) {
            out->push_back({.pci_bus = 9});
            return CUDA_SUCCESS;
          },
      .report = [](const char* line) { reported = line; },
  };
  return host;
}

CUuuid parse(const char* hex) {
  CUuuid id{};
  for (char& byte : id.bytes) {
    unsigned value = 0;
    REQUIRE(std::sscanf(hex, "%2x", &value) == 1);
    byte = static_cast<char>(value);
    hex += 2;
  }
  return id;
}

void* const* table(const char* hex) {
  const CUuuid id = parse(hex);
  const void* out = nullptr;
  REQUIRE(get_export_table(fake_host(), &out, &id) == CUDA_SUCCESS);
  return static_cast<void* const*>(out);
}

template <typename Signature>
Signature* at(const char* hex, size_t index) {
  return reinterpret_cast<Signature*>(table(hex)[index]);
}

constexpr const char* kCudartInterface = "6BD5FB6C5BF4E74A8987D93912FD9DF9";
constexpr const char* kHooks = "A094798C2E742E7493F20800200C0A66";
constexpr const char* kTls = "42D85A8123F6CB478298F6E78A3AECDC";
constexpr const char* kStorage = "C693336E1121DF11A8C368F355D89593";
constexpr const char* kChecks = "263E88607CD2614392F6BBD5006DFA7E";
constexpr const char* kIntegrity = "D4082055BDE6704B8D34BA123C66E1F2";
constexpr const char* kIdentities = "21318C60971432488CA641FF7324C8F2";
constexpr const char* kMultiprocessors = "1734DC26800D47458726C0F1E7DD8BCA";
constexpr const char* kModules = "6E163FBEB958444D835CE182AFF1991E";

}  // namespace

TEST_CASE("Tables have the driver's sizes and stay where they are") {
  const std::pair<const char*, size_t> sizes[] = {{kCudartInterface, 0x68}, {kHooks, 0x38},     {kTls, 0x18},
                                                  {kChecks, 0x78},          {kIntegrity, 0x18}, {kIdentities, 0x2E8},
                                                  {kMultiprocessors, 0x88}, {kModules, 0x318}};
  for (const auto& [id, bytes] : sizes) {
    CHECK(reinterpret_cast<size_t>(table(id)[0]) == bytes);
    CHECK(table(id) == table(id));
  }
  CHECK(table(kStorage)[3] == nullptr);
}

TEST_CASE("A table that is not offered is an invalid value and a null pointer") {
  const CUuuid nvrtc_cache = parse("DA9151D33AE6CC41A5C04F26D533E328");
  const void* out = &nvrtc_cache;
  CHECK(get_export_table(fake_host(), &out, &nvrtc_cache) == CUDA_ERROR_INVALID_VALUE);
  CHECK(out == nullptr);
  CHECK(get_export_table(fake_host(), nullptr, &nvrtc_cache) == CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("Slots that nobody is known to call answer that they are not supported") {
  CHECK(at<CUresult()>(kCudartInterface, 12)() == CUDA_ERROR_NOT_SUPPORTED);
  CHECK(at<CUresult()>(kIdentities, 92)() == CUDA_ERROR_NOT_SUPPORTED);
}

TEST_CASE("The primary context's handle comes from the host, and a bad device leaves the result alone") {
  CUcontext out = context(3);
  const auto function = at<CUresult(CUcontext*, CUdevice)>(kCudartInterface, 2);
  CHECK(function(&out, 1) == CUDA_ERROR_INVALID_DEVICE);
  CHECK(out == context(3));
  CHECK(function(&out, 0) == CUDA_SUCCESS);
  CHECK(out == context(0x1001));
}

TEST_CASE("A fat binary is loaded as a module for a runtime that knows no libraries, and forgetting it succeeds") {
  auto* load = at<CUresult(CUmodule*, const void*, void*, void*, uint32_t)>(kCudartInterface, 6);
  const int wrapper = 0;
  CUmodule module = nullptr;
  CHECK(load(&module, &wrapper, nullptr, nullptr, 0) == CUDA_SUCCESS);
  CHECK(module == reinterpret_cast<CUmodule>(0x6001));
  CHECK(load(&module, nullptr, nullptr, nullptr, 0) == CUDA_ERROR_INVALID_IMAGE);
  CHECK(at<CUresult(const void*)>(kCudartInterface, 7)(&wrapper) == CUDA_SUCCESS);
}

TEST_CASE("The runtime's callback flags are all off") {
  for (const auto& [slot, expected] : {std::pair<size_t, size_t>{2, 0x400}, {6, 0xE}}) {
    void* flags = nullptr;
    size_t count = 0;
    at<void(void**, size_t*)>(kHooks, slot)(&flags, &count);
    REQUIRE(count == expected);
    for (size_t i = 0; i < count; ++i) {
      CHECK(static_cast<const uint32_t*>(flags)[i] == 0);
    }
  }
}

TEST_CASE("Storage uses the current context when none is named") {
  const auto put = at<CUresult(CUcontext, void*, void*, void*)>(kStorage, 0);
  const auto remove = at<CUresult(CUcontext, void*)>(kStorage, 1);
  const auto get = at<CUresult(void**, CUcontext, void*)>(kStorage, 2);
  int key = 0, stored = 0;
  void* value = nullptr;
  current = nullptr;
  CHECK(get(&value, nullptr, &key) == CUDA_ERROR_INVALID_CONTEXT);
  CHECK(put(nullptr, &key, &stored, nullptr) == CUDA_ERROR_INVALID_CONTEXT);
  current = context(0x1001);
  CHECK(get(&value, nullptr, &key) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(put(nullptr, &key, &stored, nullptr) == CUDA_SUCCESS);
  CHECK(put(nullptr, &key, &stored, nullptr) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(get(&value, context(0x1001), &key) == CUDA_SUCCESS);
  CHECK(value == &stored);
  CHECK(remove(nullptr, &key) == CUDA_SUCCESS);
  CHECK(remove(nullptr, &key) == CUDA_ERROR_INVALID_HANDLE);
  current = nullptr;
}

TEST_CASE("Checks need a context and clear the flag") {
  const auto check = at<CUresult(CUcontext, uint32_t*, void**)>(kChecks, 2);
  uint32_t flag = 9;
  void* untouched = &flag;
  current = nullptr;
  CHECK(check(nullptr, &flag, &untouched) == CUDA_ERROR_INVALID_CONTEXT);
  CHECK(check(context(1), &flag, &untouched) == CUDA_SUCCESS);
  CHECK(flag == 0);
  CHECK(untouched == &flag);
  CHECK(at<int()>(kChecks, 3)() == 0);
}

TEST_CASE("A stream resolves to a token whose id is the stream's, and NULL is the legacy stream") {
  const auto resolve = at<CUresult(CUcontext, CUstream, void**)>(kIdentities, 51);
  const auto id_of = at<CUresult(CUcontext, void*, uint64_t*)>(kIdentities, 39);
  void *null_token = nullptr, *legacy_token = nullptr, *token = nullptr;
  CHECK(resolve(context(1), nullptr, &null_token) == CUDA_SUCCESS);
  CHECK(resolve(context(1), CU_STREAM_LEGACY, &legacy_token) == CUDA_SUCCESS);
  CHECK(null_token == legacy_token);
  CHECK(resolve(context(1), reinterpret_cast<CUstream>(0x70), &token) == CUDA_SUCCESS);
  uint64_t id = 0;
  CHECK(id_of(context(1), token, &id) == CUDA_SUCCESS);
  CHECK(id == 0x460);
  CHECK(at<CUresult(CUcontext, uint64_t*)>(kIdentities, 4)(context(1), &id) == CUDA_SUCCESS);
  CHECK(id == 5);
}

TEST_CASE("The functions of a module are all handed to the callback and counted") {
  std::vector<std::string> names;
  const auto each = at<int(CUcontext, CUmodule, void (*)(void*, CUfunction, const char*), void*)>(kModules, 7);
  const int count = each(
      context(1), nullptr,
      [](void* user, CUfunction, const char* name) { static_cast<std::vector<std::string>*>(user)->push_back(name); },
      &names);
  CHECK(count == 2);
  CHECK(names == std::vector<std::string>{"first", "second"});
}

TEST_CASE("The self-test is answered for this process, this thread and these tables, or refused by name") {
  uint64_t answer[2] = {1, 2};
  const auto ask = at<CUresult(uint32_t, uint64_t, uint64_t[2])>(kIntegrity, 1);
#ifdef GPUWIRE_CUDART_SELF_TEST
  REQUIRE(ask(13002, 1700000000, answer) == CUDA_SUCCESS);
  const SelfTestDevice device{.pci_bus = 9};
  const auto expected =
      self_test_answer({.driver_version = 13000,
                        .version = 13002,
                        .process_id = static_cast<uint32_t>(getpid()),
                        .thread_id = static_cast<uint32_t>(pthread_self()),
                        .cudart_interface_table = reinterpret_cast<uintptr_t>(table(kCudartInterface)),
                        .integrity_table = reinterpret_cast<uintptr_t>(table(kIntegrity)),
                        .integrity_function = reinterpret_cast<uintptr_t>(table(kIntegrity)[1]),
                        .unix_seconds = 1700000000,
                        .devices = {&device, 1}});
  CHECK(answer[0] == expected[0]);
  CHECK(answer[1] == expected[1]);
#else
  CHECK(static_cast<int>(ask(13002, 1700000000, answer)) == 103);
  CHECK(reported.find("GPUWIRE_CUDART_SELF_TEST") != std::string::npos);
#endif
}
