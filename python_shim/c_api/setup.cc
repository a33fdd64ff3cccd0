// SPDX-License-Identifier: Apache-2.0
// C API: set-up, the host's memory, who keeps time.
#include <cstdlib>
#include <utility>
#include <vector>

#include "allocator/base/host_time.h"
#include "python_shim/c_api/to_c.h"
#include "python_shim/core/core.h"
#include "tiering/host/memory_limit.h"

using namespace stratalloc;  // the C face of this namespace

extern "C" {

const char* stratalloc_version(void) { return "0.1.0"; }
void stratalloc_string_free(char* text) { std::free(text); }

int stratalloc_configure(const stratalloc_setting* settings, int count,
                         stratalloc_error* error) {
  std::vector<ConfigItem> items;
  for (int i = 0; i < count; ++i) {
    items.push_back({settings[i].key, settings[i].value});
  }
  Result<Config> config = ReadConfig(items);
  if (!config) return ToC(config.error(), error);
  return ToC(Core::Get().Configure(*std::move(config)), error);
}
int stratalloc_initialized(void) { return Core::Get().initialized(); }

int stratalloc_holds(uint64_t address) {
  return !Core::Get().abandoned() &&
         Allocator::Get().FindByAddress(address) != nullptr;
}

void stratalloc_host_memory(const char* root, uint64_t* total,
                            uint64_t* available) {
  *total = TotalHostMemory(root);
  *available = AvailableHostMemory(root);
}

void stratalloc_listen_to_host(void (*checksummed)(uint64_t bytes),
                               void (*let_go)(uint64_t token),
                               void (*went_on)(uint64_t token),
                               void (*chose)(uint64_t candidates),
                               int (*is_phantom)(void)) {
  // Never freed: another thread may be telling the one before.
  host_time_listener.store(
      new HostTimeListener{checksummed, let_go, went_on, chose, is_phantom});
}

}  // extern "C"
