// SPDX-License-Identifier: Apache-2.0

#include "tests/simulator/cudasim/operator_bridge/shape_run.h"

#include <c10/core/ScalarType.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <exception>
#include <new>

#include "tests/simulator/cudasim/operator_bridge/generator.h"
#include "tests/simulator/cudasim/operator_bridge/simulated_device.h"

namespace cudasim::bridge {
namespace {

enum class Inputs { kIntegersAsZeros, kValues, kZeros };

// Integers that the operator reads and no operator of the capture wrote.
bool HasForeignIntegers(const Recording& recording, const StorageSlot& storage,
                        ShadowBytes& shadow) {
  if (storage.write || storage.bytes == 0) return false;
  const auto slot = static_cast<int>(&storage - recording.storages.data());
  return std::any_of(recording.tensors.begin(), recording.tensors.end(),
                     [&](const TensorSlot& tensor) {
                       return tensor.storage == slot &&
                              c10::isIntegralType(
                                  c10::typeMetaToScalarType(tensor.dtype),
                                  /*includeBool=*/false);
                     }) &&
         !shadow.Holds(storage.address, storage.bytes);
}

char* Zeros(ShapeRun* run, size_t bytes) {
  // Pages of zeros that the system gives no memory before they are written.
  run->zeros.emplace_back(static_cast<char*>(std::calloc(bytes, 1)));
  if (run->zeros.back() == nullptr) throw std::bad_alloc();
  return run->zeros.back().get();
}

// Memory that has gone: a device finds out at the launch.
bool IsMissing(const StorageSlot& storage) {
  const SimulatedDevice& device = SimulatedDevice::Get();
  const void* const address = reinterpret_cast<const void*>(storage.address);
  return device.InArena(address) && !device.Accessible(address, storage.bytes);
}

// Where the aliases of a storage find their bytes.
char* BytesOf(const Recording& recording, const StorageSlot& storage,
              ShadowBytes& shadow, Inputs inputs, ShapeRun* run) {
  const bool as_zeros =
      inputs == Inputs::kZeros ||
      (inputs == Inputs::kIntegersAsZeros &&
       HasForeignIntegers(recording, storage, shadow)) ||
      (!storage.write && !shadow.Holds(storage.address, storage.bytes) &&
       IsMissing(storage));
  return as_zeros && storage.bytes != 0
             ? Zeros(run, storage.bytes)
             : shadow.At(storage.address, storage.bytes, storage.write);
}

ShapeRun RunOn(Inputs inputs, Recording& recording, ShadowBytes& shadow,
               const std::optional<at::Generator>& given) {
  ShapeRun run;
  run.aliases = std::make_unique<AliasedTensors>(
      recording, [&](const StorageSlot& storage) {
        return BytesOf(recording, storage, shadow, inputs, &run);
      });
  run.stack = recording.Arguments(*run.aliases);
  const RecordingDraws draws(&recording.draws);
  if (recording.generator >= 0) {
    run.stack[recording.generator] =
        CpuGeneratorFor(given, recording.device, ElementsDrawn(run.stack[0]));
  }
  c10::impl::ExcludeDispatchKeyGuard below(kAboveKernels);
  recording.compute(recording.op, &run.stack, recording.device);
  return run;
}

}  // namespace

ShapeRun RunForShapes(Recording& recording, ShadowBytes& shadow,
                      const std::optional<at::Generator>& given) {
  try {
    return RunOn(Inputs::kIntegersAsZeros, recording, shadow, given);
  } catch (const c10::Error&) {  // the next one may not fail
  }
  std::exception_ptr error;
  try {
    return RunOn(Inputs::kValues, recording, shadow, given);
  } catch (const c10::Error&) {
    error = std::current_exception();
  }
  try {
    return RunOn(Inputs::kZeros, recording, shadow, given);
  } catch (const c10::Error&) {
    std::rethrow_exception(error);
  }
}

}  // namespace cudasim::bridge
