#pragma once

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/integration/server_fixture.h"
#include "tests/support/tcp.h"

namespace aft::server {

using Json = nlohmann::json;

struct HttpReply {
  int status = 0;
  std::string head;
  std::string body;  // joined, if the body was chunked

  Json json() const { return Json::parse(body, nullptr, /*allow_exceptions=*/false); }
  // The data of each complete server-sent event, including "[DONE]".
  std::vector<std::string> events() const {
    std::vector<std::string> events;
    absl::string_view rest = body;
    for (size_t end = 0; (end = rest.find("\n\n")) != absl::string_view::npos;) {
      absl::string_view event = rest.substr(0, end);
      rest.remove_prefix(end + 2);
      if (event.substr(0, 7) == "event: ") event.remove_prefix(event.find('\n') + 1);
      EXPECT_EQ(event.substr(0, 6), "data: ");
      events.emplace_back(event.substr(6));
    }
    return events;
  }
};

// The time as the server tells it. time() is some milliseconds late.
inline int64_t UnixSeconds() {
  using std::chrono::system_clock;
  return system_clock::to_time_t(system_clock::now());
}

inline HttpReply ParseReply(const std::string& text) {
  HttpReply reply;
  const size_t end = text.find("\r\n\r\n");
  reply.head = text.substr(0, end + 2);
  reply.status = std::atoi(text.substr(std::min<size_t>(9, text.size())).c_str());
  reply.body = end == std::string::npos ? "" : text.substr(end + 4);
  if (reply.head.find("Transfer-Encoding: chunked") == std::string::npos) return reply;
  std::string whole;
  absl::string_view rest = reply.body;
  while (!rest.empty()) {
    const size_t size =
        std::strtoul(std::string(rest.substr(0, rest.find('\r'))).c_str(), nullptr, 16);
    absl::StrAppend(&whole, rest.substr(rest.find("\r\n") + 2, size));
    rest.remove_prefix(std::min(rest.size(), rest.find("\r\n") + size + 4));
  }
  reply.body = whole;
  return reply;
}

// A client's request. `more` holds further headers, each with its line end.
inline std::string HttpPost(const std::string& path, const std::string& body,
                            const std::string& more = "") {
  return absl::StrCat("POST ", path, " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n",
                      "Content-Type: application/json\r\n", more, "Content-Length: ", body.size(),
                      "\r\n\r\n", body);
}

inline ServerConfig WithHttp(ServerConfig config = TestConfigWithMetrics()) {
  config.http_address = "127.0.0.1:0";
  return config;
}

// A model that generates only letters, which look the same in JSON and in a program's output.
inline FakeModelRunner::Options Letters() {
  FakeModelRunner::Options options;
  options.next_token = [](uint64_t hash, int64_t /*count*/) {
    return static_cast<TokenId>('a' + hash % 26);
  };
  return options;
}

// A server with OpenAI's API.
class HttpApi : public TestServer {
 public:
  explicit HttpApi(ServerConfig config = WithHttp(), FakeModelRunner::Options options = {},
                   FakeEncoderRunner::Options encoder_options = {})
      : TestServer(std::move(config), std::move(options), encoder_options) {}

  std::string address() { return server().http_address(); }
  HttpReply Ask(const std::string& request) {
    const TcpConnection connection(address());
    connection.Send(request);
    return ParseReply(connection.ReadAll());
  }
  HttpReply Post(const std::string& path, const Json& body, const std::string& more = "") {
    return Ask(HttpPost(path, body.dump(), more));
  }
  // The answer to the same request over gRPC, which must be OK. Has at least one answer.
  v1::CompleteResponse OverGrpc(const v1::GenerateRequest& request) {
    grpc::ClientContext context;
    v1::CompleteResponse response;
    const grpc::Status status = inference().Complete(&context, request, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    if (response.answers().empty()) response.add_answers();
    return response;
  }
  HttpReply Get(const std::string& path, const std::string& more = "") {
    return Ask(absl::StrCat("GET ", path, " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n",
                            more, "\r\n"));
  }
};

}  // namespace aft::server
