#include "model/convert/torch_file.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/in_file.h"
#include "base/status_macros.h"
#include "model/checkpoint/safetensors_header.h"

namespace aft {
namespace {

// ---- The archive. Its format: APPNOTE.TXT of PKWARE, sections 4.3 and 4.5.3.

constexpr int64_t kRecordHeaderBytes = 30;  // without names
constexpr size_t kEntryBytes = 46;
constexpr int64_t kEndBytes = 22;
constexpr int64_t kWideEndBytes = 56;
constexpr int64_t kLocatorBytes = 20;
constexpr int64_t kMostDirectoryBytes = int64_t{64} << 20;
// A tensor has about 150 bytes in a pickle. Other pickles may need 80 times their size of memory.
constexpr int64_t kMostPickleBytes = int64_t{8} << 20;

struct Record {
  int64_t begin = 0;  // of its header
  int64_t end = 0;    // the begin of what follows it
  int64_t bytes = 0;
  bool stored = false;  // neither compressed nor encrypted
};
using Records = std::map<std::string, Record>;

absl::Status DamagedZip(const std::string& problem) {
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
  if (offset < 0 || bytes > file.bytes() - offset) return DamagedZip("it was cut off");
  std::string text(static_cast<size_t>(bytes), '\0');
  AFT_RETURN_IF_ERROR(file.Read(offset, bytes, text.data()));
  return text;
}

// Replaces the numbers that have no place in 32 bits by those of the extra field of zip64.
bool ReadWideNumbers(absl::string_view extra, absl::Span<uint64_t* const> numbers) {
  absl::string_view wide;
  while (extra.size() >= 4) {
    const size_t size = NumberAt<uint16_t>(extra, 2);
    if (size > extra.size() - 4) return false;
    if (NumberAt<uint16_t>(extra, 0) == 1) wide = extra.substr(4, size);
    extra.remove_prefix(4 + size);
  }
  for (uint64_t* number : numbers) {
    if (*number != std::numeric_limits<uint32_t>::max()) continue;
    if (wide.size() < sizeof(*number)) return false;
    *number = NumberAt<uint64_t>(wide, 0);
    wide.remove_prefix(sizeof(*number));
  }
  return true;
}

// Takes the next entry of a directory. `records_end` is the end of all records.
absl::Status TakeEntry(absl::string_view* directory, uint64_t records_end, Records* records) {
  const absl::Status broken = DamagedZip("its directory has a broken entry");
  if (directory->size() < kEntryBytes || !absl::StartsWith(*directory, "PK\1\2")) return broken;
  const size_t name_bytes = NumberAt<uint16_t>(*directory, 28);
  const size_t extra_bytes = NumberAt<uint16_t>(*directory, 30);
  const size_t all = kEntryBytes + name_bytes + extra_bytes + NumberAt<uint16_t>(*directory, 32);
  if (all > directory->size()) return broken;
  uint64_t bytes = NumberAt<uint32_t>(*directory, 24);
  uint64_t packed = NumberAt<uint32_t>(*directory, 20);
  uint64_t begin = NumberAt<uint32_t>(*directory, 42);
  if (!ReadWideNumbers(directory->substr(kEntryBytes + name_bytes, extra_bytes),
                       {&bytes, &packed, &begin}) ||
      begin >= records_end || packed > records_end) {
    return broken;
  }
  const bool encrypted = (NumberAt<uint16_t>(*directory, 8) & 1) != 0;
  const bool packs = NumberAt<uint16_t>(*directory, 10) != 0 || bytes != packed;
  const Record record = {static_cast<int64_t>(begin), static_cast<int64_t>(records_end),
                         static_cast<int64_t>(bytes), !encrypted && !packs};
  const std::string name(directory->substr(kEntryBytes, name_bytes));
  directory->remove_prefix(all);
  if (records->emplace(name, record).second) return absl::OkStatus();
  return DamagedZip(ShownTensorName(name) + " is there more than once");
}

absl::StatusOr<Records> ReadDirectory(const TensorFile& file) {
  int64_t end = file.bytes() - kEndBytes;
  AFT_ASSIGN_OR_RETURN(const std::string last, BytesAt(file, end, kEndBytes));
  if (!absl::StartsWith(last, "PK\5\6")) return DamagedZip("its end is missing");
  uint64_t count = NumberAt<uint16_t>(last, 10);
  uint64_t bytes = NumberAt<uint32_t>(last, 12);
  uint64_t begin = NumberAt<uint32_t>(last, 16);
  const absl::StatusOr<std::string> locator = BytesAt(file, end - kLocatorBytes, kLocatorBytes);
  if (locator.ok() && absl::StartsWith(*locator, "PK\6\7")) {
    end -= kLocatorBytes + kWideEndBytes;
    AFT_ASSIGN_OR_RETURN(const std::string wide, BytesAt(file, end, kWideEndBytes));
    if (!absl::StartsWith(wide, "PK\6\6")) return DamagedZip("its zip64 end is missing");
    count = NumberAt<uint64_t>(wide, 32);
    bytes = NumberAt<uint64_t>(wide, 40);
    begin = NumberAt<uint64_t>(wide, 48);
  }
  if (bytes > uint64_t{kMostDirectoryBytes} || begin > static_cast<uint64_t>(end) ||
      begin + bytes != static_cast<uint64_t>(end)) {
    return DamagedZip("its directory does not fill the file up to its end");
  }
  AFT_ASSIGN_OR_RETURN(const std::string directory,
                       BytesAt(file, static_cast<int64_t>(begin), static_cast<int64_t>(bytes)));
  Records records;
  for (absl::string_view rest = directory; !rest.empty();) {
    AFT_RETURN_IF_ERROR(TakeEntry(&rest, begin, &records));
  }
  if (records.size() != count) return DamagedZip("its directory has another number of entries");
  std::vector<Record*> order;
  for (auto& [name, record] : records) order.push_back(&record);
  std::sort(order.begin(), order.end(),
            [](const Record* a, const Record* b) { return a->begin < b->begin; });
  for (size_t i = 1; i < order.size(); ++i) order[i - 1]->end = order[i]->begin;
  return records;
}

// The only record with this name, in whatever folder of the archive; "" without exactly one.
std::string OnlyRecord(const Records& records, const std::string& file_name) {
  std::string only;
  for (const auto& [name, record] : records) {
    if (name != file_name && !absl::EndsWith(name, "/" + file_name)) continue;
    if (!only.empty()) return "";
    only = name;
  }
  return only;
}

// Where the bytes of a record begin. DATA_LOSS names it when it is missing, compressed or damaged.
absl::StatusOr<int64_t> FindRecord(const TensorFile& file, const Records& records,
                                   const std::string& name) {
  const std::string shown = ShownTensorName(name);
  const auto found = records.find(name);
  if (found == records.end()) return absl::DataLossError(shown + " is missing from it");
  const Record& record = found->second;
  if (!record.stored) return absl::DataLossError(shown + " is compressed or encrypted");
  AFT_ASSIGN_OR_RETURN(const std::string header, BytesAt(file, record.begin, kRecordHeaderBytes));
  const int64_t offset = record.begin + kRecordHeaderBytes + NumberAt<uint16_t>(header, 26) +
                         NumberAt<uint16_t>(header, 28);
  if (absl::StartsWith(header, "PK\3\4") && offset <= record.end &&
      record.bytes <= record.end - offset) {
    return offset;
  }
  return DamagedZip(absl::StrCat(shown, " has no valid header, or overlaps another record"));
}

absl::StatusOr<std::string> ReadRecord(const TensorFile& file, const Records& records,
                                       const std::string& name) {
  AFT_ASSIGN_OR_RETURN(const int64_t offset, FindRecord(file, records, name));
  const int64_t bytes = records.at(name).bytes;
  if (bytes <= kMostPickleBytes) return BytesAt(file, offset, bytes);
  return absl::ResourceExhaustedError(
      absl::StrCat(ShownTensorName(name), " has ", bytes, " bytes; at most ", kMostPickleBytes));
}

}  // namespace

absl::StatusOr<TorchFile> TorchFile::Open(std::shared_ptr<const TensorFile> file,
                                          absl::Span<const std::string> keys) {
  AFT_ASSIGN_OR_RETURN(const Records records, ReadDirectory(*file));
  if (!OnlyRecord(records, "constants.pkl").empty()) {
    return absl::InvalidArgumentError(
        "it is a TorchScript program: save its state_dict() with torch.save");
  }
  const std::string pickle_name = OnlyRecord(records, "data.pkl");
  if (pickle_name.empty()) return absl::DataLossError("it must have exactly one data.pkl");
  const std::string root = pickle_name.substr(0, pickle_name.rfind("data.pkl"));
  if (const std::string order = root + "byteorder"; records.count(order) > 0) {
    AFT_ASSIGN_OR_RETURN(const std::string value, ReadRecord(*file, records, order));
    if (value != "little") {
      return absl::InvalidArgumentError("it was saved on a big-endian machine");
    }
  }
  AFT_ASSIGN_OR_RETURN(const std::string pickle, ReadRecord(*file, records, pickle_name));
  TorchFile result;
  AFT_ASSIGN_OR_RETURN(result.tensors_, InFile("data.pkl", ReadStateDict(pickle, keys)));
  for (const auto& [name, tensor] : result.tensors_) {
    const std::string shown = absl::StrCat("tensor '", ShownTensorName(name), "'");
    const std::string record = absl::StrCat(root, "data/", tensor.storage);
    AFT_ASSIGN_OR_RETURN(result.storages_[tensor.storage],
                         InFile(shown, FindRecord(*file, records, record)));
    const int64_t size = SafetensorsDtypeBytes(tensor.dtype);
    const int64_t bytes = records.at(record).bytes;
    if (bytes % size != 0 || bytes / size != tensor.storage_numbers) {
      return absl::DataLossError(absl::StrCat(shown, ": its storage has ", bytes,
                                              " bytes, expected ", tensor.storage_numbers,
                                              " numbers of ", size));
    }
  }
  result.file_ = std::move(file);
  return result;
}

absl::StatusOr<at::Tensor> TorchFile::Read(const std::string& name) const {
  const PickledTensor& tensor = tensors_.at(name);
  const int64_t offset =
      storages_.at(tensor.storage) + tensor.offset * SafetensorsDtypeBytes(tensor.dtype);
  AFT_ASSIGN_OR_RETURN(
      const at::Tensor numbers,
      InFile(absl::StrCat(file_->path(), ": tensor '", ShownTensorName(name), "'"),
             file_->ReadTensor(offset, SafetensorsType(tensor.dtype), {tensor.span})));
  return numbers.as_strided(tensor.shape, tensor.strides).contiguous();
}

}  // namespace aft
