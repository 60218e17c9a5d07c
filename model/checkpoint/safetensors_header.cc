#include "model/checkpoint/safetensors_header.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "base/utf8.h"
#include "nlohmann/json.hpp"

namespace aft {
namespace {

using Json = nlohmann::json;

constexpr size_t kMaxRank = 16;
constexpr char kMetadataKey[] = "__metadata__";

absl::Status TensorError(absl::string_view name, absl::string_view reason) {
  return absl::DataLossError(absl::StrCat("tensor '", ShownTensorName(name), "': ", reason));
}

// Takes the header's JSON event by event, and stores nothing but what a header may have. So a
// hostile header costs no more memory than its own length.
class HeaderReader : public nlohmann::json_sax<Json> {
 public:
  SafetensorsHeader TakeHeader() { return std::move(header_); }
  const absl::Status& status() const { return status_; }

  bool null() override { return Unexpected("null"); }
  bool boolean(bool) override { return Unexpected("a boolean"); }
  bool number_float(number_float_t, const string_t& text) override {
    return Unexpected(absl::StrCat("the number ", text.substr(0, 40)));
  }
  bool binary(binary_t&) override { return Unexpected("binary data"); }

  bool number_integer(number_integer_t value) override {
    if (place_ == Place::kShape || place_ == Place::kOffsets) {
      return Fail(absl::StrCat(place_ == Place::kShape ? "shape" : "data_offsets",
                               " has a negative number, ", value));
    }
    return Unexpected(absl::StrCat("the number ", value));
  }

  bool number_unsigned(number_unsigned_t value) override {
    if (place_ != Place::kShape && place_ != Place::kOffsets) {
      return Unexpected(absl::StrCat("the number ", value));
    }
    if (value > number_unsigned_t{std::numeric_limits<int64_t>::max()}) {
      return Fail(absl::StrCat("number too large: ", value));
    }
    if (place_ == Place::kOffsets) {
      offsets_.push_back(static_cast<int64_t>(value));
      return offsets_.size() <= 2 || Fail("data_offsets must be two numbers");
    }
    entry_.shape.push_back(static_cast<int64_t>(value));
    return entry_.shape.size() <= kMaxRank ||
           Fail(absl::StrCat("shape has more than ", kMaxRank, " dimensions"));
  }

  bool string(string_t& value) override {
    if (place_ == Place::kMetadata) {
      header_.metadata.emplace(key_, std::move(value));
      return true;
    }
    if (place_ != Place::kEntry || key_ != "dtype") return Unexpected("a string");
    entry_.dtype = std::move(value);
    return true;
  }

  bool start_object(size_t) override {
    switch (place_) {
      case Place::kOutside:
        place_ = Place::kTop;
        return true;
      case Place::kTop:
        place_ = name_ == kMetadataKey ? Place::kMetadata : Place::kEntry;
        entry_ = {};
        offsets_.clear();
        keys_seen_.clear();
        return true;
      default:
        return Unexpected("an object");
    }
  }

  bool key(string_t& value) override {
    switch (place_) {
      case Place::kTop:
        name_ = std::move(value);
        if (header_.tensors.count(name_) != 0 || (name_ == kMetadataKey && metadata_seen_)) {
          return Fail("given more than once");
        }
        metadata_seen_ = metadata_seen_ || name_ == kMetadataKey;
        return true;
      case Place::kMetadata:
        key_ = std::move(value);
        return header_.metadata.count(key_) == 0 ||
               Fail(absl::StrCat("key '", ShownTensorName(key_), "' given more than once"));
      default:
        key_ = std::move(value);
        if (key_ != "dtype" && key_ != "shape" && key_ != "data_offsets") {
          return Fail(absl::StrCat("unknown key '", ShownTensorName(key_), "'"));
        }
        if (std::find(keys_seen_.begin(), keys_seen_.end(), key_) != keys_seen_.end()) {
          return Fail(absl::StrCat("key '", key_, "' given more than once"));
        }
        keys_seen_.push_back(key_);
        return true;
    }
  }

  bool end_object() override {
    if (place_ == Place::kTop) {
      place_ = Place::kOutside;
      return true;
    }
    if (place_ == Place::kEntry) {
      for (const char* needed : {"dtype", "shape", "data_offsets"}) {
        if (std::find(keys_seen_.begin(), keys_seen_.end(), needed) == keys_seen_.end()) {
          return Fail(absl::StrCat("key '", needed, "' is missing"));
        }
      }
      entry_.begin = offsets_[0];
      entry_.end = offsets_[1];
      header_.tensors.emplace(name_, std::move(entry_));
    }
    place_ = Place::kTop;
    return true;
  }

  bool start_array(size_t) override {
    if (place_ != Place::kEntry || key_ == "dtype") return Unexpected("an array");
    place_ = key_ == "shape" ? Place::kShape : Place::kOffsets;
    return true;
  }

  bool end_array() override {
    if (place_ == Place::kOffsets && offsets_.size() != 2) {
      return Fail("data_offsets must be two numbers");
    }
    place_ = Place::kEntry;
    return true;
  }

  bool parse_error(size_t position, const std::string&,
                   const nlohmann::detail::exception& error) override {
    status_ = absl::DataLossError(
        absl::StrCat("header is not valid JSON at byte ", position, ": ", Shown(error.what())));
    return false;
  }

 private:
  enum class Place { kOutside, kTop, kMetadata, kEntry, kShape, kOffsets };

  bool Fail(absl::string_view reason) {
    status_ = TensorError(name_, reason);
    return false;
  }

  bool Unexpected(absl::string_view what) {
    switch (place_) {
      case Place::kOutside:
        status_ = absl::DataLossError(absl::StrCat("header must be an object, not ", what));
        return false;
      case Place::kTop:
        return Fail(absl::StrCat("must be an object, not ", what));
      case Place::kMetadata:
        return Fail(absl::StrCat("key '", ShownTensorName(key_), "' must be a string, not ", what));
      case Place::kEntry:
        return Fail(absl::StrCat("key '", key_, "' must be ",
                                 key_ == "dtype" ? "a string" : "an array", ", not ", what));
      case Place::kShape:
      case Place::kOffsets:
        return Fail(absl::StrCat(key_, " must hold whole numbers, not ", what));
    }
    return Fail("unexpected content");
  }

  Place place_ = Place::kOutside;
  std::string name_;                    // of the entry being read
  std::string key_;                     // within that entry
  TensorEntry entry_;                   // so far
  std::vector<int64_t> offsets_;        // so far
  std::vector<std::string> keys_seen_;  // of the entry
  bool metadata_seen_ = false;
  SafetensorsHeader header_;
  absl::Status status_;
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
  // Both checks are here because the JSON parser skips a byte order mark and stops at a NUL.
  if (json.empty() || json.front() != '{') {
    return absl::DataLossError("header does not start with '{': not a safetensors file");
  }
  if (const size_t nul = json.find('\0'); nul != absl::string_view::npos) {
    return absl::DataLossError(absl::StrCat("header has a NUL at byte ", nul));
  }
  HeaderReader reader;
  if (!Json::sax_parse(json.begin(), json.end(), &reader)) return reader.status();
  SafetensorsHeader header = reader.TakeHeader();
  for (const auto& [name, entry] : header.tensors) {
    AFT_RETURN_IF_ERROR(CheckEntry(name, entry, data_bytes));
  }
  AFT_RETURN_IF_ERROR(CheckTiling(header, data_bytes));
  return header;
}

}  // namespace aft
