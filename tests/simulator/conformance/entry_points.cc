// SPDX-License-Identifier: Apache-2.0
//
// Finding driver functions by name, as PyTorch and the allocator do.

#include <string>

#include "tests/simulator/conformance/api.h"
#include "tests/simulator/conformance/checks.h"

namespace conformance {
namespace {

constexpr unsigned kVersion = 12000;
constexpr auto kFlags = cudaEnableDefault;

using Status = cudaDriverEntryPointQueryResult;

// What PyTorch and the allocator ask for.
constexpr const char* kWanted[] = {
    "cuCtxFromGreenCtx",
    "cuCtxGetCurrent",
    "cuCtxSetCurrent",
    "cuDeviceGetAttribute",
    "cuDevicePrimaryCtxGetState",
    "cuEventCreate",
    "cuGetErrorString",
    "cuMemAddressFree",
    "cuMemAddressReserve",
    "cuMemAlloc",
    "cuMemCreate",
    "cuMemExportToShareableHandle",
    "cuMemFree",
    "cuMemGetAllocationGranularity",
    "cuMemImportFromShareableHandle",
    "cuMemMap",
    "cuMemRelease",
    "cuMemRetainAllocationHandle",
    "cuMemSetAccess",
    "cuMemUnmap",
    "cuMulticastCreate",
    "cuPointerGetAttribute",
    "cuStreamCreate",
    "cuStreamWriteValue32",
};

}  // namespace

CASE(entry_points, runtime) {
  for (const char* name : kWanted) {
    void* function = nullptr;
    Status status = cudaDriverEntryPointSymbolNotFound;
    const unsigned version =
        std::string(name) == "cuCtxFromGreenCtx" ? 12080 : 12010;
    const cudaError_t answer = api.cudaGetDriverEntryPointByVersion(
        name, &function, version, kFlags, &status);
    Documented((std::string(name) + "_found").c_str(), cudaSuccess, answer);
    Documented((std::string(name) + "_status").c_str(),
               cudaDriverEntryPointSuccess, status);
    Documented((std::string(name) + "_pointer").c_str(), true,
               function != nullptr);
  }
}

// A name that is not there is an answer, not an error.
CASE(entry_points, unknown_names) {
  void* function = &function;
  Status status = cudaDriverEntryPointSuccess;
  Documented("call", cudaSuccess,
             api.cudaGetDriverEntryPointByVersion("cuNoSuchFunction", &function,
                                                  kVersion, kFlags, &status));
  Documented("status", cudaDriverEntryPointSymbolNotFound, status);
  Documented("pointer_is_null", true, function == nullptr);
  function = &function;
  // Newer than the version asked for: as it came with 10.2.
  Documented("too_new_call", cudaSuccess,
             api.cudaGetDriverEntryPointByVersion("cuMemCreate", &function,
                                                  9000, kFlags, &status));
  Documented("too_new_status", cudaDriverEntryPointVersionNotSufficent, status);
  Documented("too_new_pointer_is_null", true, function == nullptr);
  Documented("newer_than_the_driver", cudaErrorInvalidValue,
             api.cudaGetDriverEntryPointByVersion("cuMemCreate", &function,
                                                  990000, kFlags, &status));
  // A null name ends the process under driver 580.159: no null is asked.
  (void)api.cudaGetLastError();
  Documented("status_may_be_null", cudaSuccess,
             api.cudaGetDriverEntryPointByVersion("cuMemCreate", &function,
                                                  kVersion, kFlags, nullptr));
  Holds("and_is_found", function != nullptr);
}

CASE(entry_points, driver) {
  void* function = nullptr;
  CUdriverProcAddressQueryResult status = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  Documented("call", CUDA_SUCCESS,
             api.cuGetProcAddress("cuMemMap", &function, kVersion, 0, &status));
  Documented("status", CU_GET_PROC_ADDRESS_SUCCESS, status);
  Documented("same_function", true,
             function == reinterpret_cast<void*>(api.cuMemMap));
  // The base name gives the newest version up to the one asked for.
  Documented(
      "base_name", CUDA_SUCCESS,
      api.cuGetProcAddress("cuMemAlloc", &function, kVersion, 0, &status));
  Documented("is_version_2", true,
             function == reinterpret_cast<void*>(api.cuMemAlloc));
  Documented("unknown", CUDA_SUCCESS,
             api.cuGetProcAddress("cuNoSuchFunction", &function, kVersion, 0,
                                  &status));
  Documented("unknown_status", CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND, status);
  Documented("unknown_is_null", true, function == nullptr);
  // Here, too, a null name ends the process: no null is asked.
  Documented("newer_than_the_driver", CUDA_ERROR_INVALID_VALUE,
             api.cuGetProcAddress("cuMemMap", &function, 990000, 0, &status));
  Documented("status_may_be_null", CUDA_SUCCESS,
             api.cuGetProcAddress("cuMemMap", &function, kVersion, 0, nullptr));
}

}  // namespace conformance
