#include "model/convert/pickle.h"

#include <cstddef>
#include <cstring>
#include <deque>
#include <iterator>
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
  kOther,    // None, a bool or a float; their values are not needed
  kInt,      // number
  kString,   // text
  kTuple,    // items
  kList,     // items
  kDict,     // items: key, value, key, value, ...
  kName,     // number: its place in kAllowedNames
  kStorage,  // text: its key; number: its size; items: its type
  kTensor,   // items: the arguments of the function that makes it
};
constexpr const char* kValueNames[] = {"a number or None", "an int",    "a str",
                                       "a tuple",          "a list",    "a dict",
                                       "a name",           "a storage", "a tensor"};

// The only names that a pickle may refer to. `dtype` is set only for the types of storages.
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
  ValueKind kind = ValueKind::kOther;
  int64_t number = 0;
  absl::string_view text = {};  // in the pickle
  std::vector<Ref> items = {};
};

// Runs a pickle, which is a program for a machine with a stack of values, marks on it, and numbered
// places that keep values. Values refer to each other by index, because lists and dicts can contain
// themselves. After an error the methods return values without a meaning.
class Unpickler {
 public:
  explicit Unpickler(absl::string_view pickle) : rest_(pickle), values_(1) {}

  // Returns the value that the program ends with.
  absl::StatusOr<Ref> Run() {
    Ref result = 0;
    for (bool stop = false; status_.ok() && !stop;) {
      const auto code = Number<uint8_t>();
      stop = code == '.';
      if (stop) result = Pop();
      if (!stop && status_.ok()) Execute(code);
    }
    AFT_RETURN_IF_ERROR(status_);
    return result;
  }
  const PickleValue& operator[](Ref index) const { return values_[index]; }

 private:
  void Broken(absl::string_view problem) {
    if (status_.ok()) status_ = absl::DataLossError(absl::StrCat("not a valid pickle: ", problem));
  }
  void Refuse(absl::string_view problem) {
    if (status_.ok()) status_ = absl::InvalidArgumentError(problem);
  }

  absl::string_view Take(size_t bytes) {
    if (bytes > rest_.size()) Broken("it ends too early");
    const absl::string_view taken = rest_.substr(0, status_.ok() ? bytes : 0);
    rest_.remove_prefix(taken.size());
    return taken;
  }
  template <typename T>
  T Number() {
    T number = {};
    const absl::string_view bytes = Take(sizeof(T));
    std::memcpy(&number, bytes.data(), bytes.size());
    return number;
  }
  absl::string_view Line() {
    const absl::string_view line = Take(rest_.find('\n'));
    Take(1);
    return line;
  }

  void Push(PickleValue value) {
    stack_.push_back(static_cast<Ref>(values_.size()));
    values_.push_back(std::move(value));
  }
  Ref Pop() {
    if (stack_.size() <= (marks_.empty() ? 0 : marks_.back())) {
      Broken("its stack is empty");
      return 0;
    }
    const Ref top = stack_.back();
    stack_.pop_back();
    return top;
  }
  std::vector<Ref> PopSome(size_t count) {
    std::vector<Ref> items(count);
    for (size_t i = count; i-- > 0;) items[i] = Pop();
    return items;
  }
  // Removes the last mark and returns the values that were above it.
  std::vector<Ref> PopMarked() {
    if (marks_.empty()) {
      Broken("a mark is missing");
      return {};
    }
    const size_t count = stack_.size() - marks_.back();
    std::vector<Ref> items = PopSome(count);
    marks_.pop_back();
    return items;
  }

  void PushInt(int64_t number) { Push({ValueKind::kInt, number}); }
  void PushLong() {
    const absl::string_view bytes = Take(Number<uint8_t>());
    if (bytes.size() > sizeof(int64_t)) return Broken("an integer has more than 8 bytes");
    int64_t number = !bytes.empty() && (bytes.back() & 0x80) != 0 ? -1 : 0;
    std::memcpy(&number, bytes.data(), bytes.size());
    PushInt(number);
  }
  void PushTuple(std::vector<Ref> items) { Push({ValueKind::kTuple, 0, {}, std::move(items)}); }

  // Adds items to the list or dict that is on top of the stack now.
  void Extend(ValueKind kind, const std::vector<Ref>& items) {
    PickleValue& container = values_[stack_.empty() ? 0 : stack_.back()];
    if (container.kind != kind || (kind == ValueKind::kDict && items.size() % 2 != 0)) {
      return Broken("it adds items to a value that does not have them");
    }
    absl::c_copy(items, std::back_inserter(container.items));
  }

  void Keep(uint32_t place) {
    const Ref top = Pop();
    stack_.push_back(kept_[place] = top);
  }
  void PushKept(uint32_t place) {
    const auto found = kept_.find(place);
    if (found == kept_.end()) return Broken("it uses a value that it has not kept");
    stack_.push_back(found->second);
  }

  void TakeProtocol() {
    constexpr int kNewest = 3;  // those after it have other instructions for texts
    const int protocol = Number<uint8_t>();
    if (protocol <= kNewest) return;
    Refuse(absl::StrCat("it has the pickle protocol ", protocol,
                        ": save it again without the argument pickle_protocol of torch.save (the "
                        "default is 2)"));
  }

  // ---- In Python's own unpickler these instructions can run code.
  void PushName() {
    const absl::string_view module = Line();
    const absl::string_view name = Line();
    const auto* known = absl::c_find_if(kAllowedNames, [&](const AllowedName& one) {
      return module == one.module && name == one.name;
    });
    if (known != std::end(kAllowedNames)) {
      return Push({ValueKind::kName, known - std::begin(kAllowedNames)});
    }
    Refuse(absl::StrCat("it names ", ShownTensorName(absl::StrCat(module, ".", name)),
                        ", which is no part of a state_dict: save model.state_dict(), not the "
                        "model"));
  }

  // Pops ("storage", type, key, device, size) and pushes this storage. Its bytes are in the file,
  // outside the pickle.
  void PushStorage() {
    // Each tensor of the storage gets a copy of the key, which torch.save makes of a number. So a
    // long key of many tensors could fill the memory.
    constexpr size_t kMaxKeyBytes = 64;
    const PickleValue& tuple = values_[Pop()];
    const auto part = [&](size_t i) -> const PickleValue& { return values_[tuple.items[i]]; };
    if (tuple.kind != ValueKind::kTuple || tuple.items.size() != 5 || part(0).text != "storage" ||
        part(1).kind != ValueKind::kName || part(1).number < kFirstStorage ||
        part(2).kind != ValueKind::kString || part(2).text.size() > kMaxKeyBytes ||
        part(4).kind != ValueKind::kInt || part(4).number < 0) {
      return Refuse("it refers to a storage in an unknown form");
    }
    Push({ValueKind::kStorage, part(4).number, part(2).text, {tuple.items[1]}});
  }

  // Pops a function and a tuple of arguments, and pushes the result of the call.
  void Call() {
    const PickleValue& arguments = values_[Pop()];
    const PickleValue& function = values_[Pop()];
    const size_t count = arguments.items.size();
    if (function.kind == ValueKind::kName && arguments.kind == ValueKind::kTuple) {
      if (function.number == kOrderedDict && count == 0) return Push({ValueKind::kDict});
      if (function.number == kRebuildTensor && count >= 4 && count <= 7) {
        return Push({ValueKind::kTensor, 0, {}, arguments.items});
      }
      if (function.number == kRebuildParameter && count >= 1 && count <= 3) {
        return stack_.push_back(arguments.items[0]);
      }
    }
    Refuse("it makes a call that is no part of a state_dict");
  }

  // Drops the attributes of a state_dict(), because the import does not need them.
  void DropAttributes() {
    Pop();
    if (values_[stack_.empty() ? 0 : stack_.back()].kind == ValueKind::kDict) return;
    Refuse("it sets attributes of a value that is not a dict");
  }

  void Execute(uint8_t code) {
    using Kind = ValueKind;
    using Machine = Unpickler;
    struct Instruction {
      uint8_t code;
      void (*run)(Machine&);
    };
    // The instructions of protocol 2, which torch.save uses, as far as a state_dict has them. The
    // module pickletools of Python explains them.
    static constexpr Instruction kInstructions[] = {
        {0x80, [](Machine& m) { m.TakeProtocol(); }},
        {'(', [](Machine& m) { m.marks_.push_back(m.stack_.size()); }},
        {'N', [](Machine& m) { m.Push({}); }},
        {0x88, [](Machine& m) { m.Push({}); }},
        {0x89, [](Machine& m) { m.Push({}); }},
        {'G', [](Machine& m) { m.Take(8), m.Push({}); }},
        {'J', [](Machine& m) { m.PushInt(m.Number<int32_t>()); }},
        {'K', [](Machine& m) { m.PushInt(m.Number<uint8_t>()); }},
        {'M', [](Machine& m) { m.PushInt(m.Number<uint16_t>()); }},
        {0x8A, [](Machine& m) { m.PushLong(); }},
        {'X',
         [](Machine& m) {
           m.Push({Kind::kString, 0, m.Take(m.Number<uint32_t>())});
         }},
        {')', [](Machine& m) { m.PushTuple({}); }},
        {'t', [](Machine& m) { m.PushTuple(m.PopMarked()); }},
        {0x85, [](Machine& m) { m.PushTuple(m.PopSome(1)); }},
        {0x86, [](Machine& m) { m.PushTuple(m.PopSome(2)); }},
        {0x87, [](Machine& m) { m.PushTuple(m.PopSome(3)); }},
        {']', [](Machine& m) { m.Push({Kind::kList}); }},
        {'a', [](Machine& m) { m.Extend(Kind::kList, m.PopSome(1)); }},
        {'e', [](Machine& m) { m.Extend(Kind::kList, m.PopMarked()); }},
        {'}', [](Machine& m) { m.Push({Kind::kDict}); }},
        {'s', [](Machine& m) { m.Extend(Kind::kDict, m.PopSome(2)); }},
        {'u', [](Machine& m) { m.Extend(Kind::kDict, m.PopMarked()); }},
        {'q', [](Machine& m) { m.Keep(m.Number<uint8_t>()); }},
        {'r', [](Machine& m) { m.Keep(m.Number<uint32_t>()); }},
        {'h', [](Machine& m) { m.PushKept(m.Number<uint8_t>()); }},
        {'j', [](Machine& m) { m.PushKept(m.Number<uint32_t>()); }},
        {'c', [](Machine& m) { m.PushName(); }},
        {'Q', [](Machine& m) { m.PushStorage(); }},
        {'R', [](Machine& m) { m.Call(); }},
        {'b', [](Machine& m) { m.DropAttributes(); }}};
    for (const Instruction& known : kInstructions) {
      if (known.code == code) return known.run(*this);
    }
    Broken(absl::StrCat("instruction ", code, " is unknown"));
  }

  absl::Status status_;
  absl::string_view rest_;
  // values_[0] stands for every missing value. A vector would need up to three times the memory
  // while it grows.
  std::deque<PickleValue> values_;
  std::vector<Ref> stack_;
  std::vector<size_t> marks_;  // sizes of the stack
  absl::flat_hash_map<uint32_t, Ref> kept_;
};

std::string ShownKind(const PickleValue& value) {
  return kValueNames[static_cast<size_t>(value.kind)];
}

// Returns the value with this key in a dict.
absl::StatusOr<Ref> FindKey(const Unpickler& values, const PickleValue& dict,
                            const std::string& key) {
  for (size_t i = 0; dict.kind == ValueKind::kDict && i < dict.items.size(); i += 2) {
    const PickleValue& one = values[dict.items[i]];
    if (one.kind == ValueKind::kString && one.text == key) return dict.items[i + 1];
  }
  return absl::InvalidArgumentError(absl::StrCat("there is no key '", key, "' in it"));
}

// Names keys below which there may be a state_dict.
std::string KeyHint(const Unpickler& values, const std::vector<Ref>& items) {
  constexpr size_t kMostShown = 5;
  constexpr size_t kLongestShown = 20;
  std::vector<std::string> keys;
  for (size_t i = 0; i < items.size() && keys.size() < kMostShown; i += 2) {
    const absl::string_view key = values[items[i]].text;  // empty unless it is a string
    if (values[items[i + 1]].kind != ValueKind::kDict) continue;
    if (key.empty() || key.size() > kLongestShown) continue;
    keys.push_back(ShownTensorName(key));
  }
  return keys.empty() ? "" : absl::StrCat("; give --key with one of: ", absl::StrJoin(keys, ", "));
}

absl::StatusOr<std::vector<int64_t>> ReadSizes(const Unpickler& values, const PickleValue& tuple) {
  constexpr size_t kMaxRank = 16;
  std::vector<int64_t> sizes;
  bool fits = tuple.kind == ValueKind::kTuple && tuple.items.size() <= kMaxRank;
  for (size_t i = 0; fits && i < tuple.items.size(); ++i) {
    const PickleValue& size = values[tuple.items[i]];
    fits = size.kind == ValueKind::kInt && size.number >= 0;
    sizes.push_back(size.number);
  }
  if (fits) return sizes;
  return absl::InvalidArgumentError("its shape or strides are not sizes");
}

// Sets the span, if the tensor is within its storage.
absl::Status SetSpan(PickledTensor* tensor) {
  if (absl::c_linear_search(tensor->shape, 0)) return absl::InvalidArgumentError("it is empty");
  const int64_t most = tensor->storage_numbers;
  const absl::Status beyond = absl::InvalidArgumentError(
      absl::StrCat("it reaches beyond its storage of ", most, " numbers"));
  if (tensor->offset >= most) return beyond;
  int64_t numbers = 1;
  int64_t last = tensor->offset;
  for (size_t i = 0; i < tensor->shape.size(); ++i) {
    const int64_t size = tensor->shape[i];
    const int64_t stride = tensor->strides[i];
    if (stride > 0 && size - 1 > (most - 1 - last) / stride) return beyond;
    // Otherwise a small file could ask for any amount of memory.
    if (size > most / numbers) {
      return absl::InvalidArgumentError(
          absl::StrCat("it repeats the ", most,
                       " numbers of its storage, because it was expanded: save x.contiguous()"));
    }
    last += (size - 1) * stride;
    numbers *= size;
  }
  tensor->span = last - tensor->offset + 1;
  return absl::OkStatus();
}

// The arguments are storage, offset, shape and strides.
absl::StatusOr<PickledTensor> ReadTensor(const Unpickler& values,
                                         const std::vector<Ref>& arguments) {
  const PickleValue& storage = values[arguments[0]];
  const PickleValue& offset = values[arguments[1]];
  if (storage.kind != ValueKind::kStorage || offset.kind != ValueKind::kInt || offset.number < 0) {
    return absl::InvalidArgumentError("its first two arguments are not a storage and an offset");
  }
  PickledTensor tensor;
  tensor.dtype = kAllowedNames[values[storage.items[0]].number].dtype;
  tensor.offset = offset.number;
  tensor.storage = std::string(storage.text);
  tensor.storage_numbers = storage.number;
  AFT_ASSIGN_OR_RETURN(tensor.shape, ReadSizes(values, values[arguments[2]]));
  AFT_ASSIGN_OR_RETURN(tensor.strides, ReadSizes(values, values[arguments[3]]));
  if (tensor.shape.size() != tensor.strides.size()) {
    return absl::InvalidArgumentError("it has a shape and strides of different lengths");
  }
  AFT_RETURN_IF_ERROR(SetSpan(&tensor));
  return tensor;
}

}  // namespace

absl::StatusOr<std::map<std::string, PickledTensor>> ReadStateDict(
    absl::string_view pickle, absl::Span<const std::string> keys) {
  Unpickler values(pickle);
  AFT_ASSIGN_OR_RETURN(Ref root, values.Run());
  for (const std::string& key : keys) {
    AFT_ASSIGN_OR_RETURN(root, FindKey(values, values[root], key));
  }
  const std::vector<Ref>& items = values[root].items;
  if (values[root].kind != ValueKind::kDict || items.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("it must hold a dict with tensors, got ", ShownKind(values[root]),
                     values[root].kind == ValueKind::kDict ? " without any" : ""));
  }
  std::map<std::string, PickledTensor> tensors;
  for (size_t i = 0; i < items.size(); i += 2) {
    const PickleValue& key = values[items[i]];
    const PickleValue& value = values[items[i + 1]];
    const std::string shown = absl::StrCat("tensor '", ShownTensorName(key.text), "'");
    if (key.kind != ValueKind::kString || value.kind != ValueKind::kTensor) {
      return absl::InvalidArgumentError(absl::StrCat(shown, ": its name is ", ShownKind(key),
                                                     " and its value ", ShownKind(value),
                                                     KeyHint(values, items)));
    }
    AFT_ASSIGN_OR_RETURN(PickledTensor tensor, InFile(shown, ReadTensor(values, value.items)));
    if (!tensors.emplace(key.text, std::move(tensor)).second) {
      return InFile(shown, absl::InvalidArgumentError("given more than once"));
    }
  }
  return tensors;
}

}  // namespace aft
