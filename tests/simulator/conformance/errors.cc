// SPDX-License-Identifier: Apache-2.0
//
// Error codes: their names and what they say. PyTorch's messages are made of
// these texts, and programs look for them.

#include <cstring>
#include <string>

#include "tests/simulator/conformance/api.h"
#include "tests/simulator/conformance/checks.h"

namespace conformance {
namespace {

struct Row {
  int code;
  const char* runtime;
  const char* driver;  // null: the driver has no such code
  const char* text;
};

// The codes a program of ours may meet.
constexpr Row kRows[] = {
    {0, "cudaSuccess", "CUDA_SUCCESS", "no error"},
    {1, "cudaErrorInvalidValue", "CUDA_ERROR_INVALID_VALUE",
     "invalid argument"},
    {2, "cudaErrorMemoryAllocation", "CUDA_ERROR_OUT_OF_MEMORY",
     "out of memory"},
    {3, "cudaErrorInitializationError", "CUDA_ERROR_NOT_INITIALIZED",
     "initialization error"},
    {4, "cudaErrorCudartUnloading", "CUDA_ERROR_DEINITIALIZED",
     "driver shutting down"},
    {9, "cudaErrorInvalidConfiguration", nullptr,
     "invalid configuration argument"},
    {12, "cudaErrorInvalidPitchValue", nullptr, "invalid pitch argument"},
    {13, "cudaErrorInvalidSymbol", nullptr, "invalid device symbol"},
    {21, "cudaErrorInvalidMemcpyDirection", nullptr,
     "invalid copy direction for memcpy"},
    {35, "cudaErrorInsufficientDriver", nullptr,
     "CUDA driver version is insufficient for CUDA runtime version"},
    {46, "cudaErrorDevicesUnavailable", "CUDA_ERROR_DEVICE_UNAVAILABLE",
     "CUDA-capable device(s) is/are busy or unavailable"},
    {98, "cudaErrorInvalidDeviceFunction", nullptr, "invalid device function"},
    {100, "cudaErrorNoDevice", "CUDA_ERROR_NO_DEVICE",
     "no CUDA-capable device is detected"},
    {101, "cudaErrorInvalidDevice", "CUDA_ERROR_INVALID_DEVICE",
     "invalid device ordinal"},
    {200, "cudaErrorInvalidKernelImage", "CUDA_ERROR_INVALID_IMAGE",
     "device kernel image is invalid"},
    {201, "cudaErrorDeviceUninitialized", "CUDA_ERROR_INVALID_CONTEXT",
     "invalid device context"},
    {209, "cudaErrorNoKernelImageForDevice", "CUDA_ERROR_NO_BINARY_FOR_GPU",
     "no kernel image is available for execution on the device"},
    {214, "cudaErrorECCUncorrectable", "CUDA_ERROR_ECC_UNCORRECTABLE",
     "uncorrectable ECC error encountered"},
    {217, "cudaErrorPeerAccessUnsupported",
     "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED",
     "peer access is not supported between these two devices"},
    {304, "cudaErrorOperatingSystem", "CUDA_ERROR_OPERATING_SYSTEM",
     "OS call failed or operation not supported on this OS"},
    {400, "cudaErrorInvalidResourceHandle", "CUDA_ERROR_INVALID_HANDLE",
     "invalid resource handle"},
    {401, "cudaErrorIllegalState", "CUDA_ERROR_ILLEGAL_STATE",
     "the operation cannot be performed in the present state"},
    {500, "cudaErrorSymbolNotFound", "CUDA_ERROR_NOT_FOUND",
     "named symbol not found"},
    {600, "cudaErrorNotReady", "CUDA_ERROR_NOT_READY", "device not ready"},
    {700, "cudaErrorIllegalAddress", "CUDA_ERROR_ILLEGAL_ADDRESS",
     "an illegal memory access was encountered"},
    {701, "cudaErrorLaunchOutOfResources", "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES",
     "too many resources requested for launch"},
    {702, "cudaErrorLaunchTimeout", "CUDA_ERROR_LAUNCH_TIMEOUT",
     "the launch timed out and was terminated"},
    {704, "cudaErrorPeerAccessAlreadyEnabled",
     "CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED",
     "peer access is already enabled"},
    {705, "cudaErrorPeerAccessNotEnabled", "CUDA_ERROR_PEER_ACCESS_NOT_ENABLED",
     "peer access has not been enabled"},
    {709, "cudaErrorContextIsDestroyed", "CUDA_ERROR_CONTEXT_IS_DESTROYED",
     "context is destroyed"},
    {710, "cudaErrorAssert", "CUDA_ERROR_ASSERT",
     "device-side assert triggered"},
    {711, "cudaErrorTooManyPeers", "CUDA_ERROR_TOO_MANY_PEERS",
     "peer mapping resources exhausted"},
    {712, "cudaErrorHostMemoryAlreadyRegistered",
     "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED",
     "part or all of the requested memory range is already mapped"},
    {713, "cudaErrorHostMemoryNotRegistered",
     "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED",
     "pointer does not correspond to a registered memory region"},
    {715, "cudaErrorIllegalInstruction", "CUDA_ERROR_ILLEGAL_INSTRUCTION",
     "an illegal instruction was encountered"},
    {716, "cudaErrorMisalignedAddress", "CUDA_ERROR_MISALIGNED_ADDRESS",
     "misaligned address"},
    {719, "cudaErrorLaunchFailure", "CUDA_ERROR_LAUNCH_FAILED",
     "unspecified launch failure"},
    {800, "cudaErrorNotPermitted", "CUDA_ERROR_NOT_PERMITTED",
     "operation not permitted"},
    {801, "cudaErrorNotSupported", "CUDA_ERROR_NOT_SUPPORTED",
     "operation not supported"},
    {802, "cudaErrorSystemNotReady", "CUDA_ERROR_SYSTEM_NOT_READY",
     "system not yet initialized"},
    {900, "cudaErrorStreamCaptureUnsupported",
     "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
     "operation not permitted when stream is capturing"},
    {901, "cudaErrorStreamCaptureInvalidated",
     "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED",
     "operation failed due to a previous error during capture"},
    {902, "cudaErrorStreamCaptureMerge", "CUDA_ERROR_STREAM_CAPTURE_MERGE",
     "operation would result in a merge of separate capture sequences"},
    {903, "cudaErrorStreamCaptureUnmatched",
     "CUDA_ERROR_STREAM_CAPTURE_UNMATCHED",
     "capture was not ended in the same stream as it began"},
    {904, "cudaErrorStreamCaptureUnjoined",
     "CUDA_ERROR_STREAM_CAPTURE_UNJOINED",
     "capturing stream has unjoined work"},
    {905, "cudaErrorStreamCaptureIsolation",
     "CUDA_ERROR_STREAM_CAPTURE_ISOLATION",
     "dependency created on uncaptured work in another stream"},
    {906, "cudaErrorStreamCaptureImplicit",
     "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT",
     "operation would make the legacy stream depend on a capturing blocking "
     "stream"},
    {907, "cudaErrorCapturedEvent", "CUDA_ERROR_CAPTURED_EVENT",
     "operation not permitted on an event last recorded in a capturing "
     "stream"},
    {908, "cudaErrorStreamCaptureWrongThread",
     "CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD",
     "attempt to terminate a thread-local capture sequence from another "
     "thread"},
    {910, "cudaErrorGraphExecUpdateFailure",
     "CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE",
     "the graph update was not performed because it included changes which "
     "violated constraints specific to instantiated graph update"},
    {999, "cudaErrorUnknown", "CUDA_ERROR_UNKNOWN", "unknown error"},
};

bool Same(const char* expected, const char* actual) {
  return actual != nullptr && std::strcmp(expected, actual) == 0;
}

void Compare(const std::string& name, const char* expected,
             const char* actual) {
  Note(name.c_str(), true, Same(expected, actual), Text(expected),
       Text(actual));
}

}  // namespace

CASE(errors, runtime) {
  for (const Row& row : kRows) {
    const auto error = static_cast<cudaError_t>(row.code);
    const std::string code = std::to_string(row.code);
    Compare("name_" + code, row.runtime, api.cudaGetErrorName(error));
    Compare("text_" + code, row.text, api.cudaGetErrorString(error));
  }
  for (const int code : {-1, 5000, 12345678}) {
    const auto error = static_cast<cudaError_t>(code);
    const std::string name = "no_such_code_" + std::to_string(code);
    Compare(name, "unrecognized error code", api.cudaGetErrorString(error));
  }
}

CASE(errors, driver) {
  for (const Row& row : kRows) {
    if (row.driver == nullptr) continue;
    const auto error = static_cast<CUresult>(row.code);
    const std::string code = std::to_string(row.code);
    const char* text = nullptr;
    Documented(("name_call_" + code).c_str(), CUDA_SUCCESS,
               api.cuGetErrorName(error, &text));
    Compare("name_" + code, row.driver, text);
    (void)api.cuGetErrorString(error, &text);
    Compare("text_" + code, row.text, text);
  }
  const char* text = "unchanged";
  Documented("no_such_code", CUDA_ERROR_INVALID_VALUE,
             api.cuGetErrorName(static_cast<CUresult>(5000), &text));
  Holds("gives_null", text == nullptr);
  Documented("no_such_text", CUDA_ERROR_INVALID_VALUE,
             api.cuGetErrorString(static_cast<CUresult>(5000), &text));
}

}  // namespace conformance
