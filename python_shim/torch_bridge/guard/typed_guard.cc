// SPDX-License-Identifier: Apache-2.0
#include "python_shim/torch_bridge/guard/typed_guard.h"

#include <ATen/core/IListRef.h>
#include <ATen/core/List.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/boxing/impl/boxing.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "python_shim/torch_bridge/base/bridge_error.h"
#include "python_shim/torch_bridge/guard/list_slices.h"
#include "python_shim/torch_bridge/guard/operator_pin.h"

namespace stratalloc {
namespace {

using at::IntArrayRef;
using at::Scalar;
using at::Tensor;
using at::TensorList;
using MaybeScalar = std::optional<Scalar>;
using MaybeTensor = std::optional<Tensor>;
using MaybeType = std::optional<at::ScalarType>;
using Scalars = at::ArrayRef<Scalar>;
using Tensors = std::vector<Tensor>;
using MaybeTensors = c10::List<MaybeTensor>;
using Two = std::tuple<Tensor, Tensor>;
using Three = std::tuple<Tensor, Tensor, Tensor>;

// ---- The kernel in front of which a guard stands ----------------------------

// SafeKernelFunction calls boxed only and keeps what could do better to
// itself. An explicit instantiation may name its members.
const c10::KernelFunction& KernelOf(const c10::SafeKernelFunction& safe);
const std::shared_ptr<c10::KernelToken>& TokenOf(
    const c10::SafeKernelFunction& safe);
template <auto kKernel, auto kToken>
struct Open {
  friend const c10::KernelFunction& KernelOf(
      const c10::SafeKernelFunction& safe) {
    return safe.*kKernel;
  }
  friend const std::shared_ptr<c10::KernelToken>& TokenOf(
      const c10::SafeKernelFunction& safe) {
    return safe.*kToken;
  }
};
template struct Open<&c10::SafeKernelFunction::kernel_,
                     &c10::SafeKernelFunction::token_>;
// The same in all minors. In one that differs, MakeTypedGuard may say that
// there is none: the boxed guard uses what is public.
static_assert(sizeof(c10::SafeKernelFunction) == 104);
static_assert(sizeof(c10::KernelFunction) == 40);

// ---- Types by letters -------------------------------------------------------

// One letter per type of argument, the same for a schema's and for C++'s: a
// schema's letters find the C++ types that may be its own.
template <typename T>
constexpr char kLetter = 0;
template <>
constexpr char kLetter<const Tensor&> = 'T';
template <>
constexpr char kLetter<Tensor&> = 'W';  // written
template <>
constexpr char kLetter<const MaybeTensor&> = 't';
template <>
constexpr char kLetter<TensorList> = 'L';
template <>
constexpr char kLetter<const at::ITensorListRef&> = 'L';
template <>
constexpr char kLetter<const MaybeTensors&> = 'l';
template <>
constexpr char kLetter<const Scalar&> = 'S';
template <>
constexpr char kLetter<const MaybeScalar&> = 's';
template <>
constexpr char kLetter<Scalars> = 'A';
template <>
constexpr char kLetter<int64_t> = 'I';
template <>
constexpr char kLetter<IntArrayRef> = 'N';
template <>
constexpr char kLetter<at::OptionalIntArrayRef> = 'n';
template <>
constexpr char kLetter<bool> = 'B';
template <>
constexpr char kLetter<std::optional<bool>> = 'b';
template <>
constexpr char kLetter<double> = 'D';
template <>
constexpr char kLetter<at::ScalarType> = 'Y';
template <>
constexpr char kLetter<MaybeType> = 'y';
template <>
constexpr char kLetter<std::string_view> = 'Z';

template <typename T>
constexpr std::string_view kResult = "?";
template <>
constexpr std::string_view kResult<void> = "";
template <>
constexpr std::string_view kResult<Tensor> = "T";
template <>
constexpr std::string_view kResult<Tensor&> = "W";
template <>
constexpr std::string_view kResult<Tensors> = "L";
template <>
constexpr std::string_view kResult<Two> = "TT";
template <>
constexpr std::string_view kResult<Three> = "TTT";

char LetterOf(const c10::Type& type, bool written) {
  switch (type.kind()) {
    case c10::TypeKind::TensorType:
      return written ? 'W' : 'T';
    case c10::TypeKind::NumberType:
      return 'S';
    case c10::TypeKind::IntType:
    case c10::TypeKind::SymIntType:  // kernels at backend keys take numbers
      return 'I';
    case c10::TypeKind::BoolType:
      return 'B';
    case c10::TypeKind::FloatType:
      return 'D';
    case c10::TypeKind::ScalarTypeType:
      return 'Y';
    case c10::TypeKind::StringType:
      return 'Z';
    case c10::TypeKind::ListType:
      switch (LetterOf(*type.containedType(0), false)) {
        case 'T':
          return 'L';
        case 't':
          return 'l';
        case 'S':
          return 'A';
        case 'I':
          return 'N';
        default:
          return '?';
      }
    case c10::TypeKind::OptionalType:
      switch (LetterOf(*type.containedType(0), false)) {
        case 'T':
          return 't';
        case 'S':
          return 's';
        case 'N':
          return 'n';
        case 'B':
          return 'b';
        case 'Y':
          return 'y';
        default:
          return '?';
      }
    default:
      return '?';
  }
}

void AddLetters(const std::vector<c10::Argument>& arguments,
                std::string& letters) {
  for (const c10::Argument& argument : arguments) {
    const c10::AliasInfo* alias = argument.alias_info();
    letters +=
        LetterOf(*argument.real_type(), alias != nullptr && alias->isWrite());
  }
}

std::string LettersOf(const c10::FunctionSchema& schema) {
  std::string letters;
  AddLetters(schema.arguments(), letters);
  letters += '>';
  AddLetters(schema.returns(), letters);
  return letters;
}

// ---- The guard --------------------------------------------------------------

void Add(AccessList& list, const Tensor& tensor, const TensorArgument& how) {
  list.AddTensor(*tensor.unsafeGetTensorImpl(), how.written, how.whole_storage);
}
void Add(AccessList& list, const MaybeTensor& tensor,
         const TensorArgument& how) {
  if (tensor.has_value()) Add(list, *tensor, how);
}
template <typename Many>
void AddEach(AccessList& list, const Many& tensors, const TensorArgument& how) {
  for (const auto& tensor : tensors) Add(list, tensor, how);
}
void Add(AccessList& list, TensorList tensors, const TensorArgument& how) {
  AddEach(list, tensors, how);
}
void Add(AccessList& list, const at::ITensorListRef& tensors,
         const TensorArgument& how) {
  for (const Tensor& tensor : tensors) Add(list, tensor, how);
}
void Add(AccessList& list, const MaybeTensors& tensors,
         const TensorArgument& how) {
  for (const MaybeTensor& tensor : tensors) Add(list, tensor, how);
}

template <typename T>
constexpr bool kHoldsTensors =
    std::string_view("TWtLl").find(kLetter<T>) != std::string_view::npos;

// The signature's arguments are in the schema's order, and so are these.
template <typename T>
void AddNext(AccessList& list, const TensorArgument*& next,
             const TensorArgument* end, size_t index, const T& value) {
  if (next == end || next->index != index) return;
  Add(list, value, *next++);
}

template <typename Function>
class TypedGuard;

template <typename Result, typename... Arguments>
class TypedGuard<Result(Arguments...)> {
 public:
  static std::string Letters() {
    std::string letters;
    ((letters += kLetter<Arguments>), ...);
    return (letters += '>') += kResult<Result>;
  }

  explicit TypedGuard(const GuardedOperator& guarded)
      : guarded_(std::make_shared<const GuardedOperator>(guarded)) {}

  Result operator()(c10::DispatchKeySet keys, Arguments... arguments) const
      try {
    uint64_t lo, hi;
    if (!AnythingEvictable(&lo, &hi)) {
      return CallPrevious(keys, std::forward<Arguments>(arguments)...);
    }
    AccessList accesses(lo, hi);
    AddAll(accesses, std::index_sequence_for<Arguments...>{}, arguments...);
    if constexpr (kMayTakeSlices) {
      if (C10_UNLIKELY(NeedsSlices(*guarded_, accesses))) {
        return CallInSlices(lo, hi, keys, arguments...);
      }
    }
    if constexpr ((kMayTakeSlices && !std::is_void_v<Result>) || kMayJoin) {
      if (C10_UNLIKELY(guarded_->list.MayRunAgain())) {
        try {
          const OperatorPin pin(guarded_->name.c_str(), accesses,
                                OperatorPin::IfRefused::kTriedAgain);
          return CallPrevious(keys, arguments...);
        } catch (c10::OutOfMemoryError& refused) {
          if (!SlicesMayHelp(guarded_->list, accesses)) {
            TellRefused(guarded_->name.c_str(), accesses, &refused);
            throw;
          }
        }
        return CallInSlices(lo, hi, keys, arguments...);
      }
    }
    const OperatorPin pin(guarded_->name.c_str(), accesses);
    return CallPrevious(keys, std::forward<Arguments>(arguments)...);
  } catch (const OustedError& error) {
    LeaveOusted(error);
  }

 private:
  // The C++ types of those that ListOperator knows.
  static constexpr bool kMayTakeSlices =
      (std::is_same_v<Arguments, TensorList> || ...) &&
      (std::is_void_v<Result> || std::is_same_v<Result, Tensors>);
  static constexpr bool kMayJoin =
      (std::is_same_v<Arguments, const at::ITensorListRef&> || ...) &&
      std::is_same_v<Result, Tensor>;

  // The slow way, boxed: what it moves costs more than boxes do.
  [[gnu::noinline]] Result CallInSlices(
      uint64_t lo, uint64_t hi, c10::DispatchKeySet keys,
      const std::remove_reference_t<Arguments>&... arguments) const {
    torch::jit::Stack stack;
    stack.reserve(sizeof...(Arguments));
    torch::jit::push(stack, arguments...);
    if (!RunInSlices(*guarded_, lo, hi, keys, &stack)) {
      AccessList accesses(lo, hi);
      accesses.AddArguments(guarded_->signature, stack);
      const OperatorPin pin(guarded_->name.c_str(), accesses);
      guarded_->previous.callBoxed(guarded_->previous.opHandle(), keys, &stack);
    }
    if constexpr (!std::is_void_v<Result>) {
      return c10::impl::PopResult<Result>::call(stack);
    }
  }

  template <size_t... kIndex>
  void AddAll(AccessList& list, std::index_sequence<kIndex...>,
              const std::remove_reference_t<Arguments>&... arguments) const {
    const std::vector<TensorArgument>& all = guarded_->signature.arguments();
    const TensorArgument* next = all.data();
    const TensorArgument* const end = next + all.size();
    const auto add = [&]<typename T>(size_t index, const auto& value) {
      if constexpr (kHoldsTensors<T>) {
        AddNext(list, next, end, index, value);
      }
    };
    (add.template operator()<Arguments>(kIndex, arguments), ...);
  }

  Result CallPrevious(c10::DispatchKeySet keys, Arguments... arguments) const {
    const c10::SafeKernelFunction& previous = guarded_->previous;
    TORCH_CHECK(TokenOf(previous)->isValid(), "the kernel of ", guarded_->name,
                " that stratalloc guards is gone: ", previous.debug());
    return KernelOf(previous).template call<Result, Arguments...>(
        previous.opHandle(), keys, std::forward<Arguments>(arguments)...);
  }

  std::shared_ptr<const GuardedOperator> guarded_;
};

// ---- The types --------------------------------------------------------------

using Maker = std::optional<torch::CppFunction> (*)(const GuardedOperator&);

template <typename Function>
std::optional<torch::CppFunction> Make(const GuardedOperator& guarded) {
  try {
    // Throws unless torch knows the operator by this very type.
    guarded.previous.opHandle().typed<Function>();
  } catch (const c10::Error&) {
    return std::nullopt;
  }
  return torch::CppFunction(TypedGuard<Function>(guarded));
}

template <typename... Functions>
struct FunctionTypes {
  static std::multimap<std::string, Maker> Makers() {
    return {{TypedGuard<Functions>::Letters(), &Make<Functions>}...};
  }
};

// The types that several operators share, and those of what a step of a
// transformer or a convolutional network is made of.
using GuardedTypes = FunctionTypes<
    // One tensor.
    Tensor(const Tensor&), Tensor&(Tensor&), Tensor&(const Tensor&, Tensor&),
    Tensor(const Tensor&, const Scalar&), Tensor&(Tensor&, const Scalar&),
    Tensor&(const Tensor&, const Scalar&, Tensor&),
    Tensor(const Tensor&, const Scalar&, const Scalar&),
    Tensor(const Tensor&, int64_t), Tensor(const Tensor&, IntArrayRef),
    Tensor(const Tensor&, IntArrayRef, bool),
    Tensor(const Tensor&, int64_t, bool), Two(const Tensor&, int64_t, bool),
    Tensor(const Tensor&, at::OptionalIntArrayRef, bool, MaybeType),
    Tensor(const Tensor&, int64_t, MaybeType),
    Tensor(const Tensor&, std::string_view),
    Two(const Tensor&, double, std::optional<bool>),
    Tensor(const Tensor&, const MaybeScalar&, const MaybeScalar&),
    // Two.
    Tensor(const Tensor&, const Tensor&), Tensor&(Tensor&, const Tensor&),
    Tensor&(const Tensor&, const Tensor&, Tensor&),
    Tensor(const Tensor&, const Tensor&, const Scalar&),
    Tensor&(Tensor&, const Tensor&, const Scalar&),
    Tensor&(const Tensor&, const Tensor&, const Scalar&, Tensor&),
    Tensor&(Tensor&, const Tensor&, bool),
    Tensor(const Tensor&, const Tensor&, int64_t),
    Tensor(const Tensor&, int64_t, const Tensor&),
    Tensor(const Tensor&, const Tensor&, IntArrayRef),
    Tensor(const Tensor&, const Tensor&, double),
    Tensor(const Tensor&, const Tensor&, std::string_view),
    Tensor(const Tensor&, const Tensor&, int64_t, at::ScalarType),
    Tensor(const Tensor&, const Tensor&, int64_t, int64_t, bool),
    Tensor(const Tensor&, const Tensor&, int64_t, bool, bool),
    Tensor(const Tensor&, int64_t, const Tensor&, bool),
    Tensor&(Tensor&, int64_t, const Tensor&, const Scalar&),
    // More.
    Tensor(const Tensor&, const Tensor&, const Tensor&),
    Tensor&(Tensor&, const Tensor&, const Tensor&),
    Tensor(const Tensor&, const Tensor&, const Tensor&, const Scalar&),
    Tensor&(Tensor&, const Tensor&, const Tensor&, const Scalar&),
    Tensor(const Tensor&, const Tensor&, const Tensor&, const Scalar&,
           const Scalar&),
    Tensor&(Tensor&, const Tensor&, const Tensor&, const Scalar&,
            const Scalar&),
    Tensor&(const Tensor&, const Tensor&, const Tensor&, const Scalar&,
            const Scalar&, Tensor&),
    Tensor(const Tensor&, int64_t, const Tensor&, const Tensor&),
    Tensor&(Tensor&, int64_t, const Tensor&, const Tensor&),
    Tensor(const Tensor&, const MaybeTensors&),
    Tensor&(Tensor&, const MaybeTensors&, const Tensor&, bool, bool),
    Three(const Tensor&, IntArrayRef, const MaybeTensor&, const MaybeTensor&,
          double),
    Three(const Tensor&, const MaybeTensor&, const MaybeTensor&,
          const MaybeTensor&, const MaybeTensor&, bool, double, double),
    Tensor(const Tensor&, const Tensor&, IntArrayRef, IntArrayRef, IntArrayRef,
           int64_t, bool, bool, bool),
    // Lists.
    Tensor(const at::ITensorListRef&, int64_t), Tensor(TensorList, int64_t),
    void(TensorList), void(TensorList, const Scalar&),
    void(TensorList, Scalars), void(TensorList, const Tensor&),
    void(TensorList, TensorList), void(TensorList, TensorList, const Scalar&),
    void(TensorList, TensorList, bool),
    void(TensorList, TensorList, TensorList),
    void(TensorList, TensorList, TensorList, const Scalar&),
    void(TensorList, TensorList, TensorList, Scalars), Tensors(TensorList),
    Tensors(TensorList, const Scalar&), Tensors(TensorList, Scalars),
    Tensors(TensorList, TensorList),
    Tensors(TensorList, TensorList, const Scalar&),
    Tensors(TensorList, const Scalar&, MaybeType),
    void(TensorList, TensorList, TensorList, TensorList, TensorList, TensorList,
         double, double, double, double, double, bool, bool, const MaybeTensor&,
         const MaybeTensor&)>;

const std::multimap<std::string, Maker>& Makers() {
  static const auto& makers = *new auto(GuardedTypes::Makers());
  return makers;
}

}  // namespace

std::optional<torch::CppFunction> MakeTypedGuard(
    const GuardedOperator& guarded) {
  if (!KernelOf(guarded.previous).isValidUnboxed()) return std::nullopt;
  // The boxed guard alone knows what to do for these.
  if (guarded.collective.Communicates()) return std::nullopt;
  const auto [begin, end] =
      Makers().equal_range(LettersOf(guarded.previous.opHandle().schema()));
  for (auto maker = begin; maker != end; ++maker) {
    if (auto made = maker->second(guarded)) return made;
  }
  return std::nullopt;
}

}  // namespace stratalloc
