// SPDX-License-Identifier: Apache-2.0
// The blocks that libraries keep as workspaces: kernels use them although no
// operator names them, so nobody would bring them back. Who keeps them is
// torch's to say; the bridge plugs its answer in. Asked whenever victims are
// chosen, since a table can change at any time.
//
// An answer is exact for everything that was allocated inside an operator which
// has returned by the time of the question: torch enters a workspace into its
// table before the operator that allocated it returns, and until then it is
// pinned. So ask after the handles are marked kLeaving.
// Failure that remains: a workspace that a program makes outside every operator
// (torch.cuda.current_blas_handle()) can be chosen between its allocation and
// its entry, some hundred nanoseconds, by an eviction on another thread.
//
// Thread-safety: both functions. Addresses() calls the lister with the caller's
// locks: hold none that a free takes (the device lock). It may wait for a tenth
// of a second. Lifetime: as long as the process.
#ifndef STRATALLOC_ALLOCATOR_STATE_WORKSPACES_H_
#define STRATALLOC_ALLOCATOR_STATE_WORKSPACES_H_

#include <optional>
#include <vector>

#include "allocator/base/bytes.h"

namespace stratalloc {

class LibraryWorkspaces {
 public:
  // Calls each(context, address) for every workspace; 0 if it cannot tell now.
  using Lister = int (*)(void (*each)(void* context, void* address),
                         void* context);

  // nullptr: there are none.
  static void Use(Lister lister);
  // Base addresses of blocks, on any device; nothing if nobody can tell now,
  // and then nothing evictable may leave.
  static std::optional<std::vector<Address>> Addresses();
};

}  // namespace stratalloc

#endif  // STRATALLOC_ALLOCATOR_STATE_WORKSPACES_H_
