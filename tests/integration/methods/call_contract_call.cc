#include "tests/integration/methods/call_contract_call.h"

#include <algorithm>
#include <iterator>
#include <map>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "inference/grpc_service.pb.h"
#include "tests/integration/http/fixture.h"
#include "tests/integration/raw_call.h"

namespace aft::server {
namespace {

std::string ValueOf(const std::multimap<grpc::string_ref, grpc::string_ref>& metadata,
                    const std::string& key) {
  if (metadata.count(key) != 1) return "";
  const grpc::string_ref value = metadata.find(key)->second;
  return {value.data(), value.size()};
}

class GrpcWire final : public CallWire {
 public:
  GrpcWire(std::shared_ptr<grpc::Channel> channel, const Case& one, const std::string& message,
           const CallTerms& terms)
      : infer_stream_(one.infer_stream()),
        channel_(std::move(channel)),
        call_(*channel_, one.path, message, [&](grpc::ClientContext& context) {
          for (const auto& [name, value] : terms.headers) context.AddMetadata(name, value);
          if (terms.deadline.has_value()) context.set_deadline(*terms.deadline);
        }) {}

  bool Next(CallEnding& ending) override {
    std::string answer;
    if (!call_.Next(answer)) return false;
    inference::ModelStreamInferResponse response;
    EXPECT_TRUE(!infer_stream_ || response.ParseFromString(answer));
    EXPECT_EQ(ending.error, "") << "a response after the error";
    if (response.error_message().empty()) {
      ++ending.responses;
    } else {
      ending.error = response.error_message();
      ending.error_id = response.infer_response().id();
      EXPECT_TRUE(response.infer_response().parameters().at("triton_final_response").bool_param());
      EXPECT_EQ(response.infer_response().outputs_size(), 0);
    }
    return true;
  }
  grpc::Status Status() override { return call_.Finish(); }
  void Cancel() override { call_.context().TryCancel(); }
  void WaitUntilRead() const override {
    grpc::ClientContext context;
    grpc::health::v1::HealthCheckResponse response;
    const auto health = grpc::health::v1::Health::NewStub(channel_);
    EXPECT_TRUE(health->Check(&context, {}, &response).ok());
  }
  std::string Initial(const std::string& key) const override {
    return ValueOf(call_.context().GetServerInitialMetadata(), key);
  }
  std::string Trailing(const std::string& key) const override {
    return ValueOf(call_.context().GetServerTrailingMetadata(), key);
  }

 private:
  const bool infer_stream_;
  const std::shared_ptr<grpc::Channel> channel_;
  RawCall call_;
};

// An error over HTTP names its code; docs/http.md has the statuses.
struct HttpError {
  const char* name;
  int status;
  grpc::StatusCode code;
};
constexpr HttpError kHttpErrors[] = {
    {"invalid_value", 400, grpc::StatusCode::INVALID_ARGUMENT},
    {"unsupported", 400, grpc::StatusCode::FAILED_PRECONDITION},
    {"invalid_api_key", 401, grpc::StatusCode::UNAUTHENTICATED},
    {"permission_denied", 403, grpc::StatusCode::PERMISSION_DENIED},
    {"model_not_found", 404, grpc::StatusCode::NOT_FOUND},
    {"rate_limit_exceeded", 429, grpc::StatusCode::RESOURCE_EXHAUSTED},
    {"internal_error", 500, grpc::StatusCode::INTERNAL},
    {"unavailable", 503, grpc::StatusCode::UNAVAILABLE},
    {"deadline_exceeded", 504, grpc::StatusCode::DEADLINE_EXCEEDED}};

// The answer is read as a whole at the first Next.
class HttpWire final : public CallWire {
 public:
  HttpWire(const std::string& address, const Case& one, const std::string& message,
           const CallTerms& terms, bool unread)
      : streams_(one.streams()),
        address_(address),
        connection_(std::in_place, address, unread ? 4096 : 0) {
    std::string headers;
    for (const auto& [name, value] : terms.headers) {
      absl::StrAppend(&headers, name, ": ", value, "\r\n");
    }
    // A draining server may have closed the connection. That shows when the answer is read.
    connection_->TrySend(HttpPost(one.path, message, headers));
  }

  bool Next(CallEnding& ending) override {
    if (std::exchange(read_, true)) return false;
    if (!connection_.has_value()) {
      status_ = grpc::Status::CANCELLED;
      return false;
    }
    reply_ = ParseReply(connection_->ReadAll());
    status_ = {grpc::StatusCode::UNKNOWN, "the answer is cut off"};
    if (reply_.status != 200) {
      if (reply_.status != 0) TakeError(reply_.json(), reply_.status);
    } else if (streams_) {
      TakeEvents(ending);
    } else if (Header("content-length") == absl::StrCat(reply_.body.size())) {
      EXPECT_TRUE(reply_.json().is_object()) << reply_.body;
      ending.responses = 1;
      status_ = grpc::Status::OK;
    }
    return false;
  }
  grpc::Status Status() override { return status_; }
  void Cancel() override { connection_.reset(); }
  // One thread serves all connections.
  void WaitUntilRead() const override { HttpGet(address_, "/health"); }
  std::string Initial(const std::string& key) const override {
    return reply_.status == 200 ? Header(key) : "";
  }
  std::string Trailing(const std::string& key) const override {
    if (reply_.status == 200) return "";
    if (key != "grpc-retry-pushback-ms") return Header(key);
    return Header("x-should-retry") == "false" ? "-1" : Header("retry-after-ms");
  }

 private:
  void TakeEvents(CallEnding& ending) {
    for (const std::string& event : reply_.events()) {
      EXPECT_EQ(status_.error_message(), "the answer is cut off") << "an event after the end";
      const Json json = Json::parse(event, nullptr, /*allow_exceptions=*/false);
      const std::string type = json.is_object() ? json.value("type", "") : "";
      if (event == "[DONE]" || type == "response.incomplete") {
        status_ = grpc::Status::OK;
      } else if (json.contains("error")) {
        TakeError(json, 0);
      } else {
        ++ending.responses;
      }
    }
  }

  // `status` is the HTTP status, or 0 for an event within a stream.
  void TakeError(const Json& answer, int status) {
    const Json error = answer.value("error", Json::object());
    const std::string name = error.value("code", "");
    const auto* const known = std::find_if(std::begin(kHttpErrors), std::end(kHttpErrors),
                                           [&](const HttpError& one) { return name == one.name; });
    ASSERT_NE(known, std::end(kHttpErrors)) << answer;
    EXPECT_TRUE(status == 0 || status == known->status) << reply_.head << answer;
    // If `param` names a field, the message begins with it, except that about an unknown model.
    const std::string message = error.value("message", "");
    const Json param = error.value("param", Json());
    EXPECT_TRUE(name == "model_not_found"
                    ? param == "model"
                    : param.is_null() ||
                          absl::StartsWith(message, absl::StrCat(param.get<std::string>(), ": ")))
        << answer;
    status_ = {known->code, message};
  }

  std::string Header(const std::string& name) const {
    std::string value;
    int count = 0;
    for (const absl::string_view line : absl::StrSplit(reply_.head, "\r\n")) {
      if (!absl::StartsWithIgnoreCase(line, name + ": ")) continue;
      value = std::string(line.substr(name.size() + 2));
      ++count;
    }
    return count == 1 ? value : "";
  }

  const bool streams_;
  const std::string address_;
  std::optional<TcpConnection> connection_;  // until Cancel
  bool read_ = false;
  HttpReply reply_;
  grpc::Status status_;
};

}  // namespace

std::unique_ptr<CallWire> SendCall(const std::string& address, const Case& one,
                                   const std::string& message, const CallTerms& terms,
                                   bool unread) {
  if (one.http()) return std::make_unique<HttpWire>(address, one, message, terms, unread);
  return std::make_unique<GrpcWire>(
      unread ? TestServer::ConnectWithASmallWindow(address) : TestServer::Connect(address), one,
      message, terms);
}

}  // namespace aft::server
