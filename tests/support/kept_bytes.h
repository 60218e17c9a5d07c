#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "model/api/model_runner.h"

namespace aft {

// A state that is kept in the host's memory and whose snapshot is `snapshot`.
inline std::shared_ptr<const KeptState> KeptBytes(absl::StatusOr<std::string> snapshot) {
  class Bytes final : public KeptState {
   public:
    explicit Bytes(absl::StatusOr<std::string> snapshot) : snapshot_(std::move(snapshot)) {}
    int64_t bytes() const override { return 1; }
    absl::StatusOr<std::string> Snapshot() const override { return snapshot_; }

   private:
    const absl::StatusOr<std::string> snapshot_;
  };
  return std::make_shared<const Bytes>(std::move(snapshot));
}

}  // namespace aft
