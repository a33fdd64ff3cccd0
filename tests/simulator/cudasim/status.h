// SPDX-License-Identifier: Apache-2.0
//
// status.h: what a simulated call answers. The numbers are CUDA's own, which
// are the same in the driver (CUresult) and the runtime (cudaError_t), so an
// answer is cast to either without a table.

#ifndef STRATALLOC_TESTS_SIMULATOR_CUDASIM_STATUS_H_
#define STRATALLOC_TESTS_SIMULATOR_CUDASIM_STATUS_H_

namespace cudasim {

enum Status : int {
  kOk = 0,
  kInvalidValue = 1,
  kOutOfMemory = 2,
  kNotInitialized = 3,
  kDeinitialized = 4,
  kInvalidPitch = 12,           // runtime only
  kInvalidSymbol = 13,          // runtime only
  kInvalidDirection = 21,       // runtime only
  kInvalidDeviceFunction = 98,  // runtime only
  kNoDevice = 100,
  kInvalidDevice = 101,
  kInvalidContext = 201,
  kMapFailed = 205,
  kNoBinaryForGpu = 209,
  kUnsupportedLimit = 215,
  kPeerAccessUnsupported = 217,
  kInvalidGraphicsContext = 219,
  kJitCompilerNotFound = 221,
  kFileNotFound = 301,
  kOperatingSystem = 304,
  kInvalidHandle = 400,
  kIllegalState = 401,
  kNotFound = 500,
  kNotReady = 600,
  kIllegalAddress = 700,
  kPeerAccessAlreadyEnabled = 704,
  kPeerAccessNotEnabled = 705,
  kHostMemoryAlreadyRegistered = 712,
  kHostMemoryNotRegistered = 713,
  kNotPermitted = 800,
  kNotSupported = 801,
  kCaptureUnsupported = 900,
  kCaptureInvalidated = 901,
  kCaptureMerge = 902,
  kCaptureUnmatched = 903,
  kCaptureUnjoined = 904,
  kCaptureIsolation = 905,
  kCaptureImplicit = 906,
  kCapturedEvent = 907,
  kCaptureWrongThread = 908,
  kGraphExecUpdateFailure = 910,
  kUnknown = 999,
};

}  // namespace cudasim

#endif  // STRATALLOC_TESTS_SIMULATOR_CUDASIM_STATUS_H_
