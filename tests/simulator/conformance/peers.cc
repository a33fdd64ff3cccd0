// SPDX-License-Identifier: Apache-2.0
//
// Peer access between devices. On a machine with one device, only what that
// one can answer.

#include "tests/simulator/conformance/api.h"
#include "tests/simulator/conformance/checks.h"

namespace conformance {

CASE(peers, itself) {
  int can = 99;
  Documented("call", cudaSuccess, api.cudaDeviceCanAccessPeer(&can, 0, 0));
  Documented("a_device_is_not_its_peer", 0, can);
  DocumentedOneOf("enable",
                  {cudaErrorInvalidDevice, cudaErrorPeerAccessUnsupported},
                  api.cudaDeviceEnablePeerAccess(0, 0));
  Documented("into_null", cudaErrorInvalidValue,
             api.cudaDeviceCanAccessPeer(nullptr, 0, 0));
  DocumentedOneOf("enable_no_device",
                  {cudaErrorInvalidDevice, cudaErrorInvalidValue},
                  api.cudaDeviceEnablePeerAccess(1000, 0));
  (void)api.cudaGetLastError();
}

CASE(peers, two_devices) {
  int count = 0;
  (void)api.cudaGetDeviceCount(&count);
  int can = 0;
  if (count >= 2) (void)api.cudaDeviceCanAccessPeer(&can, 0, 1);
  if (can == 0) {
    Skip("enable", count < 2 ? "one device only" : "they are no peers");
    return;
  }
  Documented("disable_before_enable", cudaErrorPeerAccessNotEnabled,
             api.cudaDeviceDisablePeerAccess(1));
  Documented("flags", cudaErrorInvalidValue,
             api.cudaDeviceEnablePeerAccess(1, 1));
  Documented("enable", cudaSuccess, api.cudaDeviceEnablePeerAccess(1, 0));
  Documented("enable_again", cudaErrorPeerAccessAlreadyEnabled,
             api.cudaDeviceEnablePeerAccess(1, 0));
  Documented("it_is_one_way", cudaErrorPeerAccessNotEnabled, [] {
    (void)api.cudaSetDevice(1);
    const cudaError_t answer = api.cudaDeviceDisablePeerAccess(0);
    (void)api.cudaSetDevice(0);
    return answer;
  }());
  Documented("disable", cudaSuccess, api.cudaDeviceDisablePeerAccess(1));
  Documented("disable_again", cudaErrorPeerAccessNotEnabled,
             api.cudaDeviceDisablePeerAccess(1));
  (void)api.cudaGetLastError();
}

}  // namespace conformance
