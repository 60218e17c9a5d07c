#pragma once

#include <atomic>
#include <cstddef>
#include <functional>
#include <new>
#include <string>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/api/aft/generate_codec.h"
#include "server/api/aft/typed_exchange.h"
#include "server/call/exchange.h"

namespace aft::server {

// A generation that delivers nothing.
class Silent : public Exchange {
 public:
  Method method() const override { return inner_.method(); }
  size_t RequestCost(const RequestBytes& bytes) const override { return inner_.RequestCost(bytes); }
  google::protobuf::Message& request() override { return inner_.request(); }
  ModelName model_name() const override { return inner_.model_name(); }
  absl::StatusOr<DecodedRequest> Decode(const ServedModel& model,
                                        const LimitsConfig& limits) override {
    return inner_.Decode(model, limits);
  }
  Continuation continuation() const override { return inner_.continuation(); }
  void Drop() override {}
  const google::protobuf::MessageLite& outgoing() override { return inner_.outgoing(); }
  bool Finish(const Outcome& /*outcome*/, const v1::State* /*stored*/) override { return false; }

 private:
  TypedExchange<GenerateCodec> inner_;
};

// An exchange that has no memory for its note.
class Forgetful final : public Silent {
 public:
  std::string Note(const Outcome& /*outcome*/) const override { throw std::bad_alloc(); }
};

// An exchange that has no memory for its record the first time.
class Unrecorded final : public Silent {
 public:
  void Record(const ServedModel& /*model*/, const absl::Status& /*status*/,
              const Timings& /*timings*/) override {
    if (!std::exchange(failed_, true)) throw std::bad_alloc();
  }

 private:
  bool failed_ = false;
};

// An exchange that is cancelled while it decodes.
class Interrupted final : public Silent {
 public:
  absl::StatusOr<DecodedRequest> Decode(const ServedModel& model,
                                        const LimitsConfig& limits) override {
    decodes_ = true;
    std::thread(cancel).join();
    decodes_ = false;
    return Silent::Decode(model, limits);
  }
  void Drop() override { Use(); }
  size_t held_bytes() const override { return Use(); }

  std::function<void()> cancel;
  mutable std::atomic<bool> used_while_decoding{false};

 private:
  size_t Use() const {
    if (decodes_) used_while_decoding = true;
    return 0;
  }

  std::atomic<bool> decodes_{false};
};

}  // namespace aft::server
