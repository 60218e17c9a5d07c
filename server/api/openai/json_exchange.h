#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/json.h"
#include "google/protobuf/wrappers.pb.h"
#include "server/api/openai/json_text.h"
#include "server/call/exchange.h"

namespace aft::server::openai {

// An exchange whose messages are JSON: the request is one object, and the answer is one object or a
// stream of server-sent events.
class JsonExchange : public Exchange {
 public:
  // `id`: the request's id.
  JsonExchange(Method method, std::string id) : method_(method), id_(std::move(id)) {}

  // The answer is a stream of events only if an endpoint overrides this.
  bool streams() const override { return false; }
  // The text in outgoing().
  const std::string& text() {
    outgoing();
    return outgoing_.value();
  }
  // Moves the text out, so that it is not kept in addition to what is being sent.
  std::string TakeText() {
    outgoing();
    return std::move(*outgoing_.mutable_value());
  }
  // Returns the last event of a stream that has failed. `error` is the result of ErrorOf.
  virtual std::string ErrorEvent(const OrderedJson& error) {
    return absl::StrCat("data: ", DumpJson(OrderedJson{{"error", error}}), "\n\n");
  }

  Method method() const final { return method_; }
  size_t RequestCost(const RequestBytes& bytes) const final {
    return kBytesPerJsonByte * bytes.size();
  }
  google::protobuf::Message& request() final { return body_; }
  const google::protobuf::MessageLite& outgoing() override { return outgoing_; }
  void Drop() override {}
  bool Finish(const Outcome& /*outcome*/, const v1::State* /*stored*/) override { return true; }

 protected:
  // Returns the seconds since 1970, for the time of creation in answers.
  static int64_t SecondsNow() {
    const auto now = std::chrono::system_clock::now().time_since_epoch();
    return std::chrono::duration_cast<std::chrono::seconds>(now).count();
  }

  // Moves the text of the request out. StringValue::Clear would keep its memory, which is no longer
  // charged then.
  std::string TakeBody() { return std::move(*body_.mutable_value()); }

  const Method method_;
  const std::string id_;
  google::protobuf::StringValue body_;
  google::protobuf::StringValue outgoing_;
};

}  // namespace aft::server::openai
