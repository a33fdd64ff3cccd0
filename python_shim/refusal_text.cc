// SPDX-License-Identifier: Apache-2.0
#include "python_shim/refusal_text.h"

#include <algorithm>
#include <cstddef>
#include <vector>

#include "accounting/category.h"
#include "accounting/ledger.h"
#include "accounting/scope_text.h"
#include "python_shim/core.h"

namespace stratalloc {
namespace {

constexpr std::size_t kShown = 3;

Bytes OnDevice(const LedgerRow& row) {
  return row.tier_bytes[static_cast<std::size_t>(TierId::kDevice)];
}

// Behind what is there: native's text ends with a link, and without a stop.
void Append(const std::string& sentence, Error* error) {
  if (sentence.empty()) return;
  error->message += error->message.ends_with('.') ? " " : ". ";
  error->message += sentence;
}

}  // namespace

std::string LargestHolders(DeviceIndex device) {
  std::vector<LedgerRow> rows = Ledger::Get().Rows();
  std::erase_if(rows, [&](const LedgerRow& row) {
    return row.device != device || OnDevice(row) == 0;
  });
  if (rows.empty()) return "";
  Bytes all = 0;
  for (const LedgerRow& row : rows) all += OnDevice(row);
  std::stable_sort(rows.begin(), rows.end(),
                   [](const LedgerRow& a, const LedgerRow& b) {
                     return OnDevice(a) > OnDevice(b);
                   });
  std::string text = "Of the " + FormatBytes(all) + " allocated on GPU " +
                     std::to_string(Raw(device)) + ", ";
  for (std::size_t i = 0; i < std::min(kShown, rows.size()); ++i) {
    text += (i == 0 ? "" : ", ") + ScopeText(rows[i].charge.scope) +
            (i == 0 ? " holds " : " ") + FormatBytes(OnDevice(rows[i])) + " (" +
            CategoryName(rows[i].charge.category) + ")";
  }
  return text + ".";
}

void AddHolders(Error* error, DeviceIndex device) {
  if (error->code != ErrorCode::kOutOfMemory) return;
  Append(LargestHolders(device), error);
}

void AddRemedy(Error* error, DeviceAllocator& device,
               const MallocRequest& request) {
  if (error->code != ErrorCode::kOutOfMemory) return;
  const Result<Explanation> said = device.Explain(request);
  if (!said) return;
  Append(said->Remedy(), error);
}

}  // namespace stratalloc
