#include "model/checkpoint/safetensors_header.h"

#include <algorithm>
#include <limits>
#include <set>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/json_walk.h"
#include "base/status_macros.h"
#include "nlohmann/json.hpp"

namespace aft {
namespace {

using Json = nlohmann::json;

constexpr size_t kMaxRank = 16;
constexpr char kMetadataKey[] = "__metadata__";

absl::Status TensorError(absl::string_view name, absl::string_view reason) {
  return absl::DataLossError(absl::StrCat("tensor '", ShownTensorName(name), "': ", reason));
}

// Takes the values of the header in order (WalkJson), and stores nothing but what a header may
// have. So a hostile header costs little more memory than its own length.
class HeaderReader {
 public:
  absl::Status Take(const JsonPath& path, const Json& value) {
    switch (path.size()) {
      case 0:
        return absl::OkStatus();  // an object, because the header begins with '{'
      case 1:
        return BeginEntry(path[0], value);
      case 2:
        return path[0] == kMetadataKey ? TakeMetadata(path[1], value) : TakeKey(path[1], value);
      default:
        return TakeNumber(path[1], value);
    }
  }

  // Ends the entry being read. Must be called after the last value.
  absl::Status EndEntry() {
    if (entry_ == nullptr) return absl::OkStatus();
    for (const char* needed : {"dtype", "shape", "data_offsets"}) {
      if (keys_seen_.count(needed) == 0) {
        return Fail(absl::StrCat("key '", needed, "' is missing"));
      }
    }
    if (offsets_.size() != 2) return Fail("data_offsets must be two numbers");
    entry_->second.begin = offsets_[0];
    entry_->second.end = offsets_[1];
    return absl::OkStatus();
  }

  SafetensorsHeader TakeHeader() { return std::move(header_); }

 private:
  // Returns an error of the entry being read.
  absl::Status Fail(absl::string_view reason) const { return TensorError(entry_->first, reason); }

  absl::Status BeginEntry(const std::string& name, const Json& value) {
    AFT_RETURN_IF_ERROR(EndEntry());
    if (!value.is_object()) {
      return TensorError(name, absl::StrCat("must be an object, got ", ShownJson(value)));
    }
    bool is_new = false;
    if (name == kMetadataKey) {
      entry_ = nullptr;
      is_new = !std::exchange(metadata_seen_, true);
    } else {
      const auto [place, added] = header_.tensors.try_emplace(name);
      entry_ = &*place;
      is_new = added;
    }
    offsets_.clear();
    keys_seen_.clear();
    return is_new ? absl::OkStatus() : TensorError(name, "given more than once");
  }

  absl::Status TakeMetadata(const std::string& key, const Json& value) {
    const std::string shown = absl::StrCat("key '", ShownTensorName(key), "'");
    if (!value.is_string()) {
      return TensorError(kMetadataKey,
                         absl::StrCat(shown, " must be a string, got ", ShownJson(value)));
    }
    if (!header_.metadata.emplace(key, value.get<std::string>()).second) {
      return TensorError(kMetadataKey, absl::StrCat(shown, " given more than once"));
    }
    return absl::OkStatus();
  }

  absl::Status TakeKey(const std::string& key, const Json& value) {
    if (key != "dtype" && key != "shape" && key != "data_offsets") {
      return Fail(absl::StrCat("unknown key '", ShownTensorName(key), "'"));
    }
    if (!keys_seen_.insert(key).second) {
      return Fail(absl::StrCat("key '", key, "' given more than once"));
    }
    const bool is_text = key == "dtype";
    if (is_text ? !value.is_string() : !value.is_array()) {
      return Fail(absl::StrCat("key '", key, "' must be ", is_text ? "a string" : "an array",
                               ", got ", ShownJson(value)));
    }
    if (is_text) entry_->second.dtype = value.get<std::string>();
    return absl::OkStatus();
  }

  // Takes an element of the array `key`.
  absl::Status TakeNumber(const std::string& key, const Json& value) {
    if (!value.is_number_integer()) {
      return Fail(absl::StrCat(key, " must hold whole numbers, got ", ShownJson(value)));
    }
    if (!value.is_number_unsigned()) {
      return Fail(absl::StrCat(key, " has a negative number, ", ShownJson(value)));
    }
    if (value.get<uint64_t>() > uint64_t{std::numeric_limits<int64_t>::max()}) {
      return Fail(absl::StrCat("number too large: ", ShownJson(value)));
    }
    const bool is_shape = key == "shape";
    std::vector<int64_t>& numbers = is_shape ? entry_->second.shape : offsets_;
    if (is_shape && numbers.size() == kMaxRank) {
      return Fail(absl::StrCat("shape has more than ", kMaxRank, " dimensions"));
    }
    if (!is_shape && numbers.size() == 2) return Fail("data_offsets must be two numbers");
    numbers.push_back(value.get<int64_t>());
    return absl::OkStatus();
  }

  SafetensorsHeader header_;
  bool metadata_seen_ = false;
  // The entry being read, in header_; null before the first one and in the metadata.
  std::pair<const std::string, TensorEntry>* entry_ = nullptr;
  std::vector<int64_t> offsets_;     // of the entry, so far
  std::set<std::string> keys_seen_;  // in the entry
};

absl::Status CheckEntry(const std::string& name, const TensorEntry& entry, int64_t data_bytes) {
  const int64_t element_bytes = SafetensorsDtypeBytes(entry.dtype);
  if (element_bytes == 0) {
    return TensorError(name, absl::StrCat("unknown dtype '", ShownTensorName(entry.dtype), "'"));
  }
  // Zero dimensions count as one here: [0, 2^62, 2^62] is empty, but its strides would overflow.
  int64_t bound = element_bytes;
  bool empty = false;
  for (const int64_t dim : entry.shape) {
    empty = empty || dim == 0;
    if (__builtin_mul_overflow(bound, std::max<int64_t>(dim, 1), &bound)) {
      return TensorError(
          name, absl::StrCat("shape [", absl::StrJoin(entry.shape, ", "), "] is too large"));
    }
  }
  const int64_t bytes = empty ? 0 : bound;
  if (entry.begin > entry.end || entry.end > data_bytes) {
    return TensorError(
        name, absl::StrCat("data_offsets [", entry.begin, ", ", entry.end, "] are not within the ",
                           data_bytes, " bytes of data that the file has"));
  }
  if (entry.end - entry.begin != bytes) {
    return TensorError(name,
                       absl::StrCat("data_offsets [", entry.begin, ", ", entry.end, "] hold ",
                                    entry.end - entry.begin, " bytes, but ", entry.dtype, " [",
                                    absl::StrJoin(entry.shape, ", "), "] needs ", bytes));
  }
  return absl::OkStatus();
}

// The tensors must tile the data section: no byte is used twice, and none is unused.
absl::Status CheckTiling(const SafetensorsHeader& header, int64_t data_bytes) {
  std::vector<const std::pair<const std::string, TensorEntry>*> order;
  order.reserve(header.tensors.size());
  for (const auto& item : header.tensors) order.push_back(&item);
  std::sort(order.begin(), order.end(), [](const auto* a, const auto* b) {
    return std::pair(a->second.begin, a->second.end) < std::pair(b->second.begin, b->second.end);
  });
  int64_t covered = 0;
  const std::string* previous = nullptr;
  for (const auto* item : order) {
    if (item->second.begin < covered) {
      return TensorError(item->first, absl::StrCat("overlaps the data of tensor '",
                                                   ShownTensorName(*previous), "'"));
    }
    if (item->second.begin > covered) {
      return TensorError(item->first,
                         absl::StrCat("starts at byte ", item->second.begin,
                                      " of the data, leaving a gap after byte ", covered));
    }
    covered = item->second.end;
    previous = &item->first;
  }
  if (covered != data_bytes) {
    return absl::DataLossError(absl::StrCat("the file has ", data_bytes - covered,
                                            " bytes after the data of the last tensor"));
  }
  return absl::OkStatus();
}

}  // namespace

int64_t SafetensorsDtypeBytes(absl::string_view dtype) {
  if (dtype == "F64" || dtype == "I64") return 8;
  if (dtype == "F32" || dtype == "I32") return 4;
  if (dtype == "F16" || dtype == "BF16" || dtype == "I16") return 2;
  if (dtype == "I8" || dtype == "U8" || dtype == "BOOL") return 1;
  return 0;
}

std::string ShownTensorName(absl::string_view name) {
  constexpr size_t kMaxShown = 80;
  return absl::StrCat(absl::CHexEscape(name.substr(0, kMaxShown)),
                      name.size() > kMaxShown ? "..." : "");
}

absl::StatusOr<SafetensorsHeader> ParseSafetensorsHeader(absl::string_view json,
                                                         int64_t data_bytes) {
  // The JSON parser skips a byte order mark.
  if (json.empty() || json.front() != '{') {
    return absl::DataLossError("header does not start with '{': not a safetensors file");
  }
  HeaderReader reader;
  const absl::Status walked = WalkJson(json, [&reader](const JsonPath& path, const Json& value) {
    return reader.Take(path, value);
  });
  if (absl::IsInvalidArgument(walked)) {
    return absl::DataLossError(absl::StrCat("header is ", walked.message()));
  }
  AFT_RETURN_IF_ERROR(walked);
  AFT_RETURN_IF_ERROR(reader.EndEntry());
  SafetensorsHeader header = reader.TakeHeader();
  for (const auto& [name, entry] : header.tensors) {
    AFT_RETURN_IF_ERROR(CheckEntry(name, entry, data_bytes));
  }
  AFT_RETURN_IF_ERROR(CheckTiling(header, data_bytes));
  return header;
}

}  // namespace aft
