// The bytes of a connection. For every input, each answer is complete HTTP/1.1, nothing follows an
// answer that ends the connection, and the server serves the next client. The first byte says where
// the others are cut into packets. The server reads the first packets one by one.
#include <memory>
#include <string>
#include <utility>
#include <variant>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "base/check.h"
#include "server/http/http_server.h"
#include "tests/fuzz/target.h"
#include "tests/support/tcp.h"

namespace aft::fuzz {

const MemoryBound kMemory = {.fixed = 1 << 20, .per_byte = 64};

namespace {

using namespace aft::server;

constexpr size_t kMostBody = 1000;
// The number of packets that the server reads one by one. Each costs a request of its own.
constexpr int kReadOneByOne = 32;

// Answers with the body, in one part or in two.
class Echo final : public HttpTask {
 public:
  explicit Echo(bool parts) : parts_(parts) {}

  std::optional<HttpPage> Expect(size_t /*bytes*/) override { return std::nullopt; }
  HttpPage Refused(int /*status*/) override { return {}; }
  void Start(std::string body, std::shared_ptr<HttpAnswer> answer) override {
    AFT_CHECK(body.size() <= kMostBody);
    if (!parts_) return answer->Send({.body = body});
    answer->Begin({.content_type = "text/event-stream"});
    answer_ = answer;
    if (answer->Write(body)) Written();
  }
  void Written() override { answer_->End(""); }
  void Done() override {}
  void Gone(bool /*stuck*/) override {}

 private:
  const bool parts_;
  std::shared_ptr<HttpAnswer> answer_;  // in parts
};

class Handler final : public HttpHandler {
 public:
  std::variant<HttpPage, std::shared_ptr<HttpTask>> Handle(const HttpRequest& request) override {
    if (request.path == "/page") return HttpPage{.body = "page\n"};
    return std::make_shared<Echo>(request.path == "/parts");
  }
};

HttpServer& Server() {
  static Handler& handler = *new Handler();
  static HttpServer& server =
      *HttpServer::Create("127.0.0.1:0", handler,
                          {.keep_alive = true, .header_bytes = 2048, .body_bytes = kMostBody})
           ->release();
  return server;
}

std::string Ask(absl::string_view bytes, absl::string_view cut) {
  const std::string address = "127.0.0.1:" + std::to_string(Server().port());
  const TcpConnection connection(address);
  const TcpConnection other(address);
  int packets = 0;
  for (const absl::string_view packet : absl::StrSplit(bytes, cut)) {
    connection.TrySend(std::string(packet));
    if (++packets > kReadOneByOne) continue;
    // One thread reads all connections, in the order in which their bytes arrive.
    other.TrySend("HEAD /page HTTP/1.1\r\nHost: a\r\n\r\n");
    other.ReadTo("\r\n\r\n");
  }
  connection.EndSending();
  return connection.ReadAll();
}

// Removes an answer from the front.
void TakeAnswer(absl::string_view& text) {
  const size_t head_end = text.find("\r\n\r\n");
  AFT_CHECK(absl::StartsWith(text, "HTTP/1.1 ") && head_end != absl::string_view::npos);
  const absl::string_view head = text.substr(0, head_end + 2);
  const bool last = absl::StrContains(head, "\r\nConnection: close\r\n");
  text.remove_prefix(head_end + 4);
  const absl::string_view kLength = "\r\nContent-Length: ";
  if (const size_t at = head.find(kLength); at != absl::string_view::npos) {
    size_t length = 0;
    const absl::string_view rest = head.substr(at + kLength.size());
    AFT_CHECK(absl::SimpleAtoi(rest.substr(0, rest.find('\r')), &length));
    text.remove_prefix(std::min(length, text.size()));  // an answer to HEAD has no body
  } else if (absl::StrContains(head, "\r\nTransfer-Encoding: chunked\r\n")) {
    const size_t end = text.find("0\r\n\r\n");
    text.remove_prefix(end == absl::string_view::npos ? text.size() : end + 5);
  }
  AFT_CHECK(!last || !absl::StartsWith(text, "HTTP/1.1 "));
}

}  // namespace
}  // namespace aft::fuzz

void aft::fuzz::RunInput(const uint8_t* data, size_t size) {
  if (size == 0) return;
  const std::string cut(1, static_cast<char>(data[0]));
  const std::string all = Ask(AsText(data + 1, size - 1), cut);
  absl::string_view answers = all;
  while (absl::StartsWith(answers, "HTTP/1.1 ")) TakeAnswer(answers);
  static int inputs = 0;
  if (++inputs % 32 != 0) return;
  AFT_CHECK(absl::StrContains(
      Ask("GET /page HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", "\xff"), "page\n"));
}
