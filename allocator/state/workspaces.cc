// SPDX-License-Identifier: Apache-2.0
#include "allocator/state/workspaces.h"

#include <atomic>

namespace stratalloc {
namespace {

std::atomic<LibraryWorkspaces::Lister> installed_lister{nullptr};

}  // namespace

void LibraryWorkspaces::Use(Lister lister) {
  installed_lister.store(lister, std::memory_order_release);
}

std::optional<std::vector<Address>> LibraryWorkspaces::Addresses() {
  std::vector<Address> addresses;
  const Lister lister = installed_lister.load(std::memory_order_acquire);
  if (lister == nullptr) return addresses;
  const auto each = [](void* context, void* address) {
    static_cast<std::vector<Address>*>(context)->push_back(
        reinterpret_cast<Address>(address));
  };
  if (lister(each, &addresses) == 0) return std::nullopt;
  return addresses;
}

}  // namespace stratalloc
