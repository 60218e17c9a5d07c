#include "model/convert/stored_zip.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <limits>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "model/checkpoint/safetensors_header.h"

// The format: APPNOTE.TXT of PKWARE, sections 4.3 and 4.5.3.
namespace aft {
namespace {

constexpr absl::string_view kEntryMark = "PK\1\2";
constexpr absl::string_view kEndMark = "PK\5\6";
constexpr absl::string_view kEnd64Mark = "PK\6\6";
constexpr absl::string_view kLocatorMark = "PK\6\7";
constexpr int64_t kRecordBytes = 30;  // of the headers, without names
constexpr size_t kEntryBytes = 46;
constexpr int64_t kEndBytes = 22;
constexpr int64_t kEnd64Bytes = 56;
constexpr int64_t kLocatorBytes = 20;
constexpr int64_t kMostDirectoryBytes = int64_t{64} << 20;

absl::Status Damaged(const std::string& problem) {
  return absl::DataLossError(absl::StrCat("not a valid zip archive: ", problem));
}

// REQUIRES: the bytes have the number.
template <typename T>
T NumberAt(absl::string_view bytes, size_t offset) {
  T number;
  std::memcpy(&number, bytes.data() + offset, sizeof(T));
  return number;
}

absl::StatusOr<std::string> BytesAt(const TensorFile& file, int64_t offset, int64_t bytes) {
  if (offset < 0 || bytes > file.bytes() - offset) return Damaged("it was cut off");
  std::string text(static_cast<size_t>(bytes), '\0');
  AFT_RETURN_IF_ERROR(file.Read(offset, bytes, text.data()));
  return text;
}

// Sizes and offset of an entry. Numbers that have no place in 32 bits are in an extra field.
struct EntryNumbers {
  uint64_t bytes;
  uint64_t stored_bytes;
  uint64_t begin;
};

bool ReadEntryNumbers(absl::string_view entry, absl::string_view extra, EntryNumbers* numbers) {
  constexpr uint32_t kElsewhere = std::numeric_limits<uint32_t>::max();
  *numbers = {NumberAt<uint32_t>(entry, 24), NumberAt<uint32_t>(entry, 20),
              NumberAt<uint32_t>(entry, 42)};
  absl::string_view wide;
  while (extra.size() >= 4) {
    const uint16_t id = NumberAt<uint16_t>(extra, 0);
    const size_t size = NumberAt<uint16_t>(extra, 2);
    if (size > extra.size() - 4) return false;
    if (id == 1) wide = extra.substr(4, size);
    extra.remove_prefix(4 + size);
  }
  for (uint64_t* number : {&numbers->bytes, &numbers->stored_bytes, &numbers->begin}) {
    if (*number != kElsewhere) continue;
    if (wide.size() < 8) return false;
    *number = NumberAt<uint64_t>(wide, 0);
    wide.remove_prefix(8);
  }
  return true;
}

}  // namespace

absl::StatusOr<StoredZip> StoredZip::Open(std::shared_ptr<const TensorFile> file) {
  StoredZip zip(std::move(file));
  AFT_RETURN_IF_ERROR(zip.ReadDirectory());
  return zip;
}

absl::Status StoredZip::ReadDirectory() {
  int64_t end = file_->bytes() - kEndBytes;
  AFT_ASSIGN_OR_RETURN(const std::string last, BytesAt(*file_, end, kEndBytes));
  if (!absl::StartsWith(last, kEndMark)) return Damaged("its end is missing");
  uint64_t count = NumberAt<uint16_t>(last, 10);
  uint64_t bytes = NumberAt<uint32_t>(last, 12);
  uint64_t begin = NumberAt<uint32_t>(last, 16);
  if (const absl::StatusOr<std::string> locator =
          BytesAt(*file_, end - kLocatorBytes, kLocatorBytes);
      locator.ok() && absl::StartsWith(*locator, kLocatorMark)) {
    end -= kLocatorBytes + kEnd64Bytes;
    AFT_ASSIGN_OR_RETURN(const std::string wide, BytesAt(*file_, end, kEnd64Bytes));
    if (!absl::StartsWith(wide, kEnd64Mark)) return Damaged("its zip64 end is missing");
    count = NumberAt<uint64_t>(wide, 32);
    bytes = NumberAt<uint64_t>(wide, 40);
    begin = NumberAt<uint64_t>(wide, 48);
  }
  if (bytes > uint64_t{kMostDirectoryBytes} || begin > static_cast<uint64_t>(end) ||
      begin + bytes != static_cast<uint64_t>(end)) {
    return Damaged("its directory does not fill the file up to its end");
  }
  AFT_ASSIGN_OR_RETURN(const std::string directory,
                       BytesAt(*file_, static_cast<int64_t>(begin), static_cast<int64_t>(bytes)));
  return AddRecords(directory, static_cast<int64_t>(begin), count);
}

absl::Status StoredZip::AddRecords(absl::string_view directory, int64_t begin, uint64_t count) {
  std::vector<Record*> order;
  while (!directory.empty()) {
    if (directory.size() < kEntryBytes || !absl::StartsWith(directory, kEntryMark)) {
      return Damaged("its directory has a broken entry");
    }
    const absl::string_view entry = directory.substr(0, kEntryBytes);
    const size_t name_bytes = NumberAt<uint16_t>(entry, 28);
    const size_t extra_bytes = NumberAt<uint16_t>(entry, 30);
    const size_t all = kEntryBytes + name_bytes + extra_bytes + NumberAt<uint16_t>(entry, 32);
    EntryNumbers numbers = {};
    if (all > directory.size() ||
        !ReadEntryNumbers(entry, directory.substr(kEntryBytes + name_bytes, extra_bytes),
                          &numbers) ||
        numbers.begin >= static_cast<uint64_t>(begin) ||
        numbers.bytes > static_cast<uint64_t>(begin)) {
      return Damaged("its directory has a broken entry");
    }
    const bool encrypted = (NumberAt<uint16_t>(entry, 8) & 1) != 0;
    const bool stored = NumberAt<uint16_t>(entry, 10) == 0 && numbers.bytes == numbers.stored_bytes;
    const auto [record, is_new] =
        records_.emplace(directory.substr(kEntryBytes, name_bytes),
                         Record{static_cast<int64_t>(numbers.begin), begin,
                                static_cast<int64_t>(numbers.bytes), encrypted || !stored});
    if (!is_new) return Damaged(ShownTensorName(record->first) + " is there more than once");
    order.push_back(&record->second);
    directory.remove_prefix(all);
  }
  if (order.size() != count) return Damaged("its directory has another number of entries");
  std::sort(order.begin(), order.end(),
            [](const Record* a, const Record* b) { return a->begin < b->begin; });
  for (size_t i = 1; i < order.size(); ++i) order[i - 1]->end = order[i]->begin;
  return absl::OkStatus();
}

std::string StoredZip::Only(absl::string_view file_name) const {
  std::string only;
  for (const auto& [name, record] : records_) {
    if (name != file_name && !absl::EndsWith(name, absl::StrCat("/", file_name))) continue;
    if (!only.empty()) return "";
    only = name;
  }
  return only;
}

absl::StatusOr<StoredZip::Place> StoredZip::Find(const std::string& name) const {
  const std::string shown = ShownTensorName(name);
  const auto found = records_.find(name);
  if (found == records_.end()) return absl::DataLossError(shown + " is missing from it");
  const Record& record = found->second;
  if (record.compressed) return absl::DataLossError(shown + " is compressed or encrypted");
  AFT_ASSIGN_OR_RETURN(const std::string header, BytesAt(*file_, record.begin, kRecordBytes));
  const int64_t offset =
      record.begin + kRecordBytes + NumberAt<uint16_t>(header, 26) + NumberAt<uint16_t>(header, 28);
  if (!absl::StartsWith(header, kRecordMark) || offset > record.end ||
      record.bytes > record.end - offset) {
    return Damaged(absl::StrCat(shown, " has no valid header, or overlaps another record"));
  }
  return Place{offset, record.bytes};
}

absl::StatusOr<std::string> StoredZip::Read(const std::string& name, int64_t most) const {
  AFT_ASSIGN_OR_RETURN(const Place place, Find(name));
  if (place.bytes > most) {
    return absl::ResourceExhaustedError(absl::StrCat(ShownTensorName(name), " has ", place.bytes,
                                                     " bytes; at most ", most, " are read"));
  }
  return BytesAt(*file_, place.offset, place.bytes);
}

}  // namespace aft
