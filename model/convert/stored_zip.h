#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "model/checkpoint/tensor_file.h"

namespace aft {

// A zip archive whose records are stored as they are, so that they can be read in place. This is
// what torch.save writes. The archive is not trusted: what its directory says must fill the file
// up to its end, and the records that are used are within the file, do not overlap and are not
// compressed. Zip64 is supported. Checksums are not verified. Thread-safe.
//
// LibTorch's own reader (PyTorchStreamReader) is not used: it unpacks a record before anybody can
// ask for its size, so that an archive of 1 MB takes 2 GB, and it accepts overlapping records.
class StoredZip {
 public:
  struct Place {
    int64_t offset = 0;  // in the file
    int64_t bytes = 0;
  };

  // Reads the directory. Errors: DATA_LOSS; they do not name the file.
  static absl::StatusOr<StoredZip> Open(std::shared_ptr<const TensorFile> file);

  static bool IsZip(const TensorFile& file) { return file.BeginsWith(kRecordMark); }

  bool Has(const std::string& name) const { return records_.count(name) > 0; }

  // The name of the only record with this name, in whatever folder of the archive; "" when there is
  // none or more than one.
  std::string Only(absl::string_view file_name) const;

  // Where a record is. DATA_LOSS names it when it is missing, compressed or damaged.
  absl::StatusOr<Place> Find(const std::string& name) const;

  // The content of a record. RESOURCE_EXHAUSTED when it has more than `most` bytes; otherwise the
  // errors are those of Find and of reading the file.
  absl::StatusOr<std::string> Read(const std::string& name, int64_t most) const;

 private:
  static constexpr absl::string_view kRecordMark = "PK\3\4";  // the begin of each record
  struct Record {
    int64_t begin = 0;  // of its header
    int64_t end = 0;    // the begin of what follows it
    int64_t bytes = 0;
    bool compressed = false;
  };

  explicit StoredZip(std::shared_ptr<const TensorFile> file) : file_(std::move(file)) {}
  absl::Status ReadDirectory();
  absl::Status AddRecords(absl::string_view directory, int64_t begin, uint64_t count);

  std::shared_ptr<const TensorFile> file_;
  std::map<std::string, Record> records_;
};

}  // namespace aft
