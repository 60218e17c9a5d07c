#include "model/convert/pickle.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <deque>
#include <iterator>
#include <type_traits>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/in_file.h"
#include "base/status_macros.h"
#include "model/checkpoint/safetensors_header.h"

namespace aft {
namespace {

enum class ValueKind : uint8_t {
  kNone,
  kBool,
  kInt,      // number
  kFloat,    // its value is never needed
  kString,   // text
  kTuple,    // items
  kList,     // items
  kDict,     // items: key, value, key, value, ...
  kName,     // number: its place in kAllowedNames
  kStorage,  // text: its key; number: its size; items: its type
  kTensor,   // items: the arguments of the function that makes it
};
constexpr const char* kValueNames[] = {"None",   "a bool",    "an int",  "a float",
                                       "a str",  "a tuple",   "a list",  "a dict",
                                       "a name", "a storage", "a tensor"};

// The only names that a pickle may refer to. A storage's type has a dtype.
struct AllowedName {
  const char* module;
  const char* name;
  const char* dtype = "";
};
constexpr AllowedName kAllowedNames[] = {
    {"collections", "OrderedDict"},         {"torch._utils", "_rebuild_tensor_v2"},
    {"torch._utils", "_rebuild_parameter"}, {"torch", "DoubleStorage", "F64"},
    {"torch", "FloatStorage", "F32"},       {"torch", "HalfStorage", "F16"},
    {"torch", "BFloat16Storage", "BF16"},   {"torch", "LongStorage", "I64"},
    {"torch", "IntStorage", "I32"},         {"torch", "ShortStorage", "I16"},
    {"torch", "CharStorage", "I8"},         {"torch", "ByteStorage", "U8"},
    {"torch", "BoolStorage", "BOOL"}};
enum : int64_t { kOrderedDict, kRebuildTensor, kRebuildParameter, kFirstStorage };

using Ref = uint32_t;  // the index of a value

struct PickleValue {
  ValueKind kind = ValueKind::kNone;
  int64_t number = 0;
  absl::string_view text = {};  // in the pickle
  std::vector<Ref> items = {};
};

absl::Status Broken(const std::string& problem) {
  return absl::DataLossError(absl::StrCat("not a valid pickle: ", problem));
}

// The machine that a pickle is a program for: a stack of values, marks on it, and numbered places
// that keep values. Values refer to each other by index, because lists and dicts can contain
// themselves.
class Unpickler {
 public:
  explicit Unpickler(absl::string_view pickle) : rest_(pickle) {}

  absl::StatusOr<Ref> Run() {
    while (true) {
      AFT_ASSIGN_OR_RETURN(const uint8_t code, Number<uint8_t>());
      if (code == '.') return Pop();
      AFT_RETURN_IF_ERROR(Execute(code));
    }
  }
  const PickleValue& operator[](Ref index) const { return values_[index]; }

 private:
  // ---- The program's bytes
  absl::StatusOr<absl::string_view> Take(size_t bytes) {
    if (bytes > rest_.size()) return Broken("it ends too early");
    const absl::string_view taken = rest_.substr(0, bytes);
    rest_.remove_prefix(bytes);
    return taken;
  }
  template <typename T>
  absl::StatusOr<T> Number() {
    AFT_ASSIGN_OR_RETURN(const absl::string_view bytes, Take(sizeof(T)));
    T number;
    std::memcpy(&number, bytes.data(), sizeof(T));
    return number;
  }
  absl::StatusOr<absl::string_view> Line() {
    AFT_ASSIGN_OR_RETURN(const absl::string_view line, Take(rest_.find('\n')));
    rest_.remove_prefix(1);
    return line;
  }

  // ---- The stack
  absl::Status Push(PickleValue value) {
    stack_.push_back(static_cast<Ref>(values_.size()));
    values_.push_back(std::move(value));
    return absl::OkStatus();
  }
  absl::StatusOr<Ref> Pop() {
    if (stack_.size() <= (marks_.empty() ? 0 : marks_.back())) return Broken("its stack is empty");
    const Ref top = stack_.back();
    stack_.pop_back();
    return top;
  }
  // The values above the last mark, which goes away.
  absl::StatusOr<std::vector<Ref>> PopMarked() {
    if (marks_.empty()) return Broken("a mark is missing");
    std::vector<Ref> items(stack_.begin() + static_cast<std::ptrdiff_t>(marks_.back()),
                           stack_.end());
    stack_.resize(marks_.back());
    marks_.pop_back();
    return items;
  }
  absl::StatusOr<std::vector<Ref>> PopSome(size_t count) {
    std::vector<Ref> items(count);
    for (size_t i = count; i-- > 0;) {
      AFT_ASSIGN_OR_RETURN(items[i], Pop());
    }
    return items;
  }

  template <typename T>
  absl::Status PushInteger() {
    AFT_ASSIGN_OR_RETURN(const T number, Number<T>());
    return Push({ValueKind::kInt, number});
  }
  absl::Status PushLong() {
    AFT_ASSIGN_OR_RETURN(const uint8_t size, Number<uint8_t>());
    AFT_ASSIGN_OR_RETURN(const absl::string_view bytes, Take(size));
    if (size > sizeof(int64_t)) return Broken("an integer has more than 8 bytes");
    const bool negative = size > 0 && (bytes.back() & 0x80) != 0;
    int64_t number = negative ? -1 : 0;
    std::memcpy(&number, bytes.data(), size);
    return Push({ValueKind::kInt, number});
  }
  absl::Status PushString() {
    AFT_ASSIGN_OR_RETURN(const uint32_t size, Number<uint32_t>());
    AFT_ASSIGN_OR_RETURN(const absl::string_view text, Take(size));
    return Push({ValueKind::kString, 0, text});
  }
  absl::Status PushTuple(absl::StatusOr<std::vector<Ref>> items) {
    AFT_RETURN_IF_ERROR(items.status());
    return Push({ValueKind::kTuple, 0, {}, *std::move(items)});
  }

  // Adds items to the list or dict below them.
  absl::Status Extend(ValueKind kind, absl::StatusOr<std::vector<Ref>> items) {
    AFT_RETURN_IF_ERROR(items.status());
    AFT_ASSIGN_OR_RETURN(const Ref index, Pop());
    PickleValue& container = values_[index];
    if (container.kind != kind || (kind == ValueKind::kDict && items->size() % 2 != 0)) {
      return Broken("it adds items to a value that does not have them");
    }
    absl::c_copy(*items, std::back_inserter(container.items));
    stack_.push_back(index);
    return absl::OkStatus();
  }

  template <typename T>
  absl::Status Keep() {
    AFT_ASSIGN_OR_RETURN(const T place, Number<T>());
    AFT_ASSIGN_OR_RETURN(const Ref top, Pop());
    stack_.push_back(kept_[place] = top);
    return absl::OkStatus();
  }
  template <typename T>
  absl::Status PushKept() {
    AFT_ASSIGN_OR_RETURN(const T place, Number<T>());
    const auto found = kept_.find(place);
    if (found == kept_.end()) return Broken("it uses a value that it has not kept");
    stack_.push_back(found->second);
    return absl::OkStatus();
  }

  // ---- What could run code elsewhere
  absl::Status PushName() {
    AFT_ASSIGN_OR_RETURN(const absl::string_view module, Line());
    AFT_ASSIGN_OR_RETURN(const absl::string_view name, Line());
    const auto* known = absl::c_find_if(kAllowedNames, [&](const AllowedName& one) {
      return module == one.module && name == one.name;
    });
    if (known != std::end(kAllowedNames)) {
      return Push({ValueKind::kName, known - std::begin(kAllowedNames)});
    }
    return absl::InvalidArgumentError(
        absl::StrCat("it names ", ShownTensorName(absl::StrCat(module, ".", name)),
                     ", which is no part of a state_dict: save model.state_dict(), not the model"));
  }

  // ("storage", type, key, device, size), which the file has outside its pickle.
  absl::Status PushStorage() {
    AFT_ASSIGN_OR_RETURN(const Ref index, Pop());
    const std::vector<Ref>& parts = values_[index].items;
    const auto is = [&](size_t i, ValueKind kind) { return values_[parts[i]].kind == kind; };
    if (values_[index].kind != ValueKind::kTuple || parts.size() != 5 ||
        !is(0, ValueKind::kString) || values_[parts[0]].text != "storage" ||
        !is(1, ValueKind::kName) || values_[parts[1]].number < kFirstStorage ||
        !is(2, ValueKind::kString) || !is(4, ValueKind::kInt) || values_[parts[4]].number < 0) {
      return absl::InvalidArgumentError("it refers to a storage in an unknown form");
    }
    return Push(
        {ValueKind::kStorage, values_[parts[4]].number, values_[parts[2]].text, {parts[1]}});
  }

  // A call of a function with a tuple of arguments.
  absl::Status Call() {
    AFT_ASSIGN_OR_RETURN(const std::vector<Ref> call, PopSome(2));
    const PickleValue& function = values_[call[0]];
    const PickleValue& arguments = values_[call[1]];
    const size_t count = arguments.items.size();
    if (function.kind == ValueKind::kName && arguments.kind == ValueKind::kTuple) {
      if (function.number == kOrderedDict && count == 0) return Push({ValueKind::kDict});
      if (function.number == kRebuildTensor && count >= 4 && count <= 7) {
        return Push({ValueKind::kTensor, 0, {}, arguments.items});
      }
      if (function.number == kRebuildParameter && count >= 1 && count <= 3) {
        stack_.push_back(arguments.items[0]);
        return absl::OkStatus();
      }
    }
    return absl::InvalidArgumentError("it makes a call that is no part of a state_dict");
  }

  // A state_dict() has attributes, which nothing needs.
  absl::Status DropAttributes() {
    AFT_ASSIGN_OR_RETURN(const std::vector<Ref> both, PopSome(2));
    if (values_[both[0]].kind != ValueKind::kDict) {
      return absl::InvalidArgumentError("it sets attributes of a value that is not a dict");
    }
    stack_.push_back(both[0]);
    return absl::OkStatus();
  }

  // The instructions of protocol 2, which torch.save uses, as far as a state_dict has them. The
  // module pickletools of Python explains them.
  absl::Status Execute(uint8_t code) {
    switch (code) {
      case 0x80:
        return Number<uint8_t>().status();  // the protocol
      case '(':
        marks_.push_back(stack_.size());
        return absl::OkStatus();
      case 'N':
        return Push({ValueKind::kNone});
      case 0x88:
      case 0x89:
        return Push({ValueKind::kBool});
      case 'J':
        return PushInteger<int32_t>();
      case 'K':
        return PushInteger<uint8_t>();
      case 'M':
        return PushInteger<uint16_t>();
      case 0x8A:
        return PushLong();
      case 'G':
        AFT_RETURN_IF_ERROR(Take(8).status());
        return Push({ValueKind::kFloat});
      case 'X':
        return PushString();
      case ')':
        return Push({ValueKind::kTuple});
      case 't':
        return PushTuple(PopMarked());
      case 0x85:
        return PushTuple(PopSome(1));
      case 0x86:
        return PushTuple(PopSome(2));
      case 0x87:
        return PushTuple(PopSome(3));
      case ']':
        return Push({ValueKind::kList});
      case 'a':
        return Extend(ValueKind::kList, PopSome(1));
      case 'e':
        return Extend(ValueKind::kList, PopMarked());
      case '}':
        return Push({ValueKind::kDict});
      case 's':
        return Extend(ValueKind::kDict, PopSome(2));
      case 'u':
        return Extend(ValueKind::kDict, PopMarked());
      case 'q':
        return Keep<uint8_t>();
      case 'r':
        return Keep<uint32_t>();
      case 'h':
        return PushKept<uint8_t>();
      case 'j':
        return PushKept<uint32_t>();
      case 'c':
        return PushName();
      case 'Q':
        return PushStorage();
      case 'R':
        return Call();
      case 'b':
        return DropAttributes();
      default:
        return Broken(absl::StrCat("instruction ", code, " is unknown"));
    }
  }

  absl::string_view rest_;
  std::deque<PickleValue> values_;  // a vector would need up to three times the memory
  std::vector<Ref> stack_;
  std::vector<size_t> marks_;  // sizes of the stack
  absl::flat_hash_map<uint32_t, Ref> kept_;
};

// Reads what the machine has made.
class StateDict {
 public:
  explicit StateDict(const Unpickler& values) : values_(values) {}

  absl::StatusOr<std::map<std::string, PickledTensor>> Read(
      Ref root, absl::Span<const std::string> keys) const {
    for (const std::string& key : keys) {
      AFT_RETURN_IF_ERROR(CheckDict(root));
      AFT_ASSIGN_OR_RETURN(root, Find(values_[root].items, key));
    }
    AFT_RETURN_IF_ERROR(CheckDict(root));
    const std::vector<Ref>& items = values_[root].items;
    std::map<std::string, PickledTensor> tensors;
    for (size_t i = 0; i < items.size(); i += 2) {
      const PickleValue& key = values_[items[i]];
      if (key.kind != ValueKind::kString) {
        return absl::InvalidArgumentError(
            absl::StrCat("the name of a tensor is ", kValueNames[static_cast<int>(key.kind)]));
      }
      const std::string shown = absl::StrCat("tensor '", ShownTensorName(key.text), "'");
      const PickleValue& value = values_[items[i + 1]];
      if (value.kind != ValueKind::kTensor) {
        return absl::InvalidArgumentError(
            absl::StrCat(shown, ": is ", kValueNames[static_cast<int>(value.kind)], Hint(items)));
      }
      AFT_ASSIGN_OR_RETURN(PickledTensor tensor, InFile(shown, ReadTensor(value.items)));
      if (!tensors.emplace(key.text, std::move(tensor)).second) {
        return InFile(shown, absl::InvalidArgumentError("given more than once"));
      }
    }
    if (tensors.empty()) return absl::InvalidArgumentError("it holds no tensors");
    return tensors;
  }

 private:
  absl::Status CheckDict(Ref index) const {
    const ValueKind kind = values_[index].kind;
    if (kind == ValueKind::kDict) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat("it holds ", kValueNames[static_cast<int>(kind)], ", not a dict of tensors"));
  }

  absl::StatusOr<Ref> Find(const std::vector<Ref>& items, const std::string& key) const {
    for (size_t i = 0; i < items.size(); i += 2) {
      const PickleValue& one = values_[items[i]];
      if (one.kind == ValueKind::kString && one.text == key) return items[i + 1];
    }
    return absl::InvalidArgumentError(absl::StrCat("there is no key '", key, "' in it"));
  }

  // The keys below which there may be a state_dict.
  std::string Hint(const std::vector<Ref>& items) const {
    constexpr size_t kMostShown = 5;
    std::vector<std::string> keys;
    for (size_t i = 0; i < items.size() && keys.size() < kMostShown; i += 2) {
      const PickleValue& key = values_[items[i]];
      if (key.kind != ValueKind::kString || values_[items[i + 1]].kind != ValueKind::kDict)
        continue;
      keys.push_back(ShownTensorName(key.text));
    }
    return keys.empty() ? ""
                        : absl::StrCat("; give --key with one of: ", absl::StrJoin(keys, ", "));
  }

  absl::StatusOr<std::vector<int64_t>> ReadSizes(Ref index) const {
    constexpr size_t kMaxRank = 16;
    const PickleValue& tuple = values_[index];
    std::vector<int64_t> sizes;
    for (const Ref item : tuple.items) {
      if (values_[item].kind != ValueKind::kInt || values_[item].number < 0) break;
      sizes.push_back(values_[item].number);
    }
    if (tuple.kind == ValueKind::kTuple && sizes.size() == tuple.items.size() &&
        sizes.size() <= kMaxRank) {
      return sizes;
    }
    return absl::InvalidArgumentError("its shape or strides are not sizes");
  }

  // Storage, offset, shape and strides.
  absl::StatusOr<PickledTensor> ReadTensor(const std::vector<Ref>& arguments) const {
    const PickleValue& storage = values_[arguments[0]];
    const PickleValue& offset = values_[arguments[1]];
    if (storage.kind != ValueKind::kStorage || offset.kind != ValueKind::kInt ||
        offset.number < 0) {
      return absl::InvalidArgumentError("its storage or offset is none");
    }
    PickledTensor tensor;
    tensor.dtype = kAllowedNames[values_[storage.items[0]].number].dtype;
    tensor.storage = std::string(storage.text);
    tensor.storage_numbers = storage.number;
    tensor.offset = offset.number;
    AFT_ASSIGN_OR_RETURN(tensor.shape, ReadSizes(arguments[2]));
    AFT_ASSIGN_OR_RETURN(tensor.strides, ReadSizes(arguments[3]));
    if (tensor.shape.size() != tensor.strides.size()) {
      return absl::InvalidArgumentError("it has a shape and strides of different lengths");
    }
    AFT_RETURN_IF_ERROR(SetSpan(&tensor));
    return tensor;
  }

  // Sets the span, if the tensor is within its storage.
  static absl::Status SetSpan(PickledTensor* tensor) {
    const int64_t most = tensor->storage_numbers;
    const auto beyond = [most] {
      return absl::InvalidArgumentError(
          absl::StrCat("it reaches beyond its storage of ", most, " numbers"));
    };
    if (tensor->offset >= most) return beyond();
    int64_t numbers = 1;
    int64_t last = tensor->offset;
    for (size_t i = 0; i < tensor->shape.size(); ++i) {
      const int64_t size = tensor->shape[i];
      const int64_t stride = tensor->strides[i];
      if (size == 0) return absl::InvalidArgumentError("it is empty");
      if (stride > 0 && size - 1 > (most - 1 - last) / stride) return beyond();
      // Otherwise a small file could ask for any amount of memory.
      if (size > most / numbers) {
        return absl::InvalidArgumentError(absl::StrCat(
            "it repeats the ", most, " numbers of its storage (expand): save it contiguous"));
      }
      last += (size - 1) * stride;
      numbers *= size;
    }
    tensor->span = last - tensor->offset + 1;
    return absl::OkStatus();
  }

  const Unpickler& values_;
};

}  // namespace

absl::StatusOr<std::map<std::string, PickledTensor>> ReadStateDict(
    absl::string_view pickle, absl::Span<const std::string> keys) {
  Unpickler unpickler(pickle);
  AFT_ASSIGN_OR_RETURN(const Ref root, unpickler.Run());
  return StateDict(unpickler).Read(root, keys);
}

}  // namespace aft
