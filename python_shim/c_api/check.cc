// SPDX-License-Identifier: Apache-2.0
// C API: whether every sum holds.
#include "accounting/ledger.h"
#include "python_shim/c_api/to_c.h"
#include "python_shim/core/core.h"

namespace stratalloc {
namespace {

Status Check(int device) {
  const Result<DeviceAllocator*> opened = Core::Get().Opened(device);
  if (!opened) return tl::unexpected(opened.error());
  if (*opened != nullptr) {
    STRATALLOC_RETURN_IF_ERROR((*opened)->CheckInvariants());
    if (Engine* engine = Core::Get().engine(); engine != nullptr) {
      STRATALLOC_RETURN_IF_ERROR(engine->CheckInvariants(**opened));
    }
  }
  return Ledger::Get().CheckInvariants();
}

}  // namespace
}  // namespace stratalloc

using namespace stratalloc;  // the C face of this namespace

extern "C" int stratalloc_check_invariants(int device,
                                           stratalloc_error* error) {
  return ToC(Check(device), error);
}
