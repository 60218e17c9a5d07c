// The pages of the metrics port, over sockets.
#include "server/http/http_pages.h"

#include <dlfcn.h>
#include <sys/socket.h>
#include <zlib.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <list>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_replace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/http/http_message.h"
#include "server/http/http_server.h"
#include "server/http/http_session.h"
#include "tests/support/captured_log.h"
#include "tests/support/no_more_files.h"
#include "tests/support/status_matchers.h"
#include "tests/support/tcp.h"

namespace aft::server {
namespace {

using boost::asio::ip::make_address;
using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

// The calls of accept(2) that have failed because there was no file descriptor.
constinit std::atomic<int> accepts_without_file{0};

constexpr size_t kLarge = 8 << 20;  // more than sockets buffer

std::string Inflate(std::string packed) {
  std::string text(1 << 20, '\0');
  z_stream stream{};
  EXPECT_EQ(inflateInit2(&stream, 15 + 16), Z_OK);
  stream.next_in = reinterpret_cast<Bytef*>(packed.data());
  stream.avail_in = static_cast<uInt>(packed.size());
  stream.next_out = reinterpret_cast<Bytef*>(text.data());
  stream.avail_out = static_cast<uInt>(text.size());
  EXPECT_EQ(inflate(&stream, Z_FINISH), Z_STREAM_END);
  text.resize(stream.total_out);
  inflateEnd(&stream);
  return text;
}

class HttpPagesTest : public testing::Test {
 protected:
  void Start(std::chrono::milliseconds patience) {
    server_.reset();
    pages_ = std::make_unique<HttpPages>(HttpPages::Pages{
        {"/small", [] { return HttpPage{.body = "small page\n"}; }},
        {"/large", [] { return HttpPage{.body = std::string(kLarge, 'x')}; }},
        {"/page",
         [] { return HttpPage{.content_type = "text/html", .body = std::string(5000, 'p')}; }},
        {"/own",
         [] {
           return HttpPage{.headers = {{"X-Frame-Options", "SAMEORIGIN"}}};
         }},
        {"/broken", []() -> HttpPage { throw std::runtime_error("no memory"); }},
    });
    auto created = HttpServer::Create("127.0.0.1:0", *pages_, {.patience = patience});
    ASSERT_TRUE(created.ok()) << created.status();
    server_ = *std::move(created);
    address_ = "127.0.0.1:" + std::to_string(server_->port());
  }
  void SetUp() override { Start(std::chrono::hours(1)); }

  // The whole answer to these bytes.
  std::string Ask(const std::string& request) const {
    const TcpConnection connection(address_);
    connection.Send(request);
    return connection.ReadAll();
  }
  std::string AskFor(const std::string& line, const std::string& more = "") const {
    return Ask(line + " HTTP/1.1\r\nHost: localhost\r\n" + more + "\r\n");
  }

  std::unique_ptr<HttpPages> pages_;
  std::unique_ptr<HttpServer> server_;
  std::string address_;
};

TEST(HostTest, AddressesOfOneNetworkAreOneHost) {
  EXPECT_EQ(HostOf(make_address("2001:db8:1:2::3")), HostOf(make_address("2001:db8:1:2:ffff::4")));
  EXPECT_NE(HostOf(make_address("2001:db8:1:2::3")), HostOf(make_address("2001:db8:1:3::3")));
  EXPECT_NE(HostOf(make_address("192.0.2.1")), HostOf(make_address("192.0.2.2")));
  EXPECT_NE(HostOf(make_address("::ffff:192.0.2.1")), HostOf(make_address("::ffff:192.0.2.2")));
}

TEST_F(HttpPagesTest, ReportsThePortThatTheKernelChoseAndOneThatIsTaken) {
  EXPECT_GT(server_->port(), 0);
  EXPECT_THAT(
      HttpServer::Create(address_, *pages_),
      StatusIs(absl::StatusCode::kUnavailable, AllOf(HasSubstr(address_), HasSubstr("in use"))));
  EXPECT_THAT(HttpServer::Create("no such host:1", *pages_),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("no such host:1")));
}

TEST_F(HttpPagesTest, AnswersEachPath) {
  const std::string answer = AskFor("GET /small");
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 200 OK\r\n"));
  EXPECT_THAT(answer, HasSubstr("Content-Length: 11\r\n"));
  EXPECT_THAT(answer, HasSubstr("Connection: close\r\n"));
  EXPECT_THAT(answer, EndsWith("\r\n\r\nsmall page\n"));
  for (const char* target :
       {"/small?name[]=aft_slots", "http://server:1/small", "/small?a=http://b/c"}) {
    EXPECT_THAT(AskFor(std::string("GET ") + target), EndsWith("\r\n\r\nsmall page\n")) << target;
  }
  EXPECT_THAT(AskFor("GET /page"), HasSubstr("Content-Type: text/html\r\n"));
  EXPECT_THAT(HttpGet(address_, "/small"), HasSubstr("small page"));  // HTTP/1.0, without a Host
}

// A page of another origin may point a host name of its own to this machine (DNS rebinding).
TEST_F(HttpPagesTest, AtALoopbackAddressTheHostIsNoNameOfDns) {
  const auto ask = [this](const std::string& path, const std::string& host) {
    return Ask("GET " + path + " HTTP/1.1\r\nHost: " + host + "\r\n\r\n");
  };
  for (const std::string host : {"localhost", "LocalHost:8501", "127.0.0.1", "127.0.0.1:8501",
                                 "10.0.0.7", "[::1]", "[::1]:8501", ""}) {
    EXPECT_THAT(ask("/small", host), StartsWith("HTTP/1.1 200 ")) << host;
  }
  for (const std::string host : {"evil.example", "evil.example:8501", "localhost.evil.example",
                                 "127.0.0.1.evil.example", "[::1", "[evil.example]"}) {
    for (const char* path : {"/small", "/nothing"}) {
      EXPECT_THAT(ask(path, host), AllOf(StartsWith("HTTP/1.1 403 "), EndsWith("IP address\n")))
          << host;
    }
  }
  HttpRequest elsewhere;  // at another address any Host is served
  elsewhere.method = "GET";
  elsewhere.path = "/small";
  elsewhere.headers = {{"Host", "service.example:8501"}};
  EXPECT_EQ(std::get<HttpPage>(pages_->Handle(elsewhere)).status, 200);
}

TEST_F(HttpPagesTest, UnknownPathsAreNotFoundAndTheAnswerNamesTheKnownOnes) {
  for (const char* target : {"/", "/nothing", "/small/", "//small", "/../small", "/SMALL", "*",
                             "http://server", "http://server?x=/small"}) {
    const std::string answer = AskFor(std::string("GET ") + target);
    EXPECT_THAT(answer, StartsWith("HTTP/1.1 404 ")) << target;
    EXPECT_THAT(answer, HasSubstr(" /small")) << target;
  }
}

TEST_F(HttpPagesTest, HeadHasTheHeadersAlone) {
  const std::string get = AskFor("GET /page");
  const std::string head = AskFor("HEAD /page");
  // A second may have passed between the two answers.
  const auto date = [](const std::string& answer) {
    return answer.substr(answer.find("\r\nDate: "), 37);
  };
  EXPECT_EQ(absl::StrReplaceAll(head, {{date(head), date(get)}}), get.substr(0, get.size() - 5000));
  EXPECT_THAT(head, AllOf(HasSubstr("Content-Length: 5000\r\n"), EndsWith("\r\n\r\n")));
}

TEST_F(HttpPagesTest, OtherMethodsAreRefusedWhateverTheyBring) {
  for (const char* method : {"POST", "PUT", "DELETE", "OPTIONS", "TRACE", "CONNECT", "FROB"}) {
    EXPECT_THAT(AskFor(method + std::string(" /small")),
                AllOf(StartsWith("HTTP/1.1 405 "), HasSubstr("Allow: GET, HEAD\r\n")))
        << method;
  }
  // The client writes its body before it reads the answer.
  const std::string answer =
      AskFor("POST /small", "Content-Length: 100000\r\n\r\n" + std::string(100'000, 'b'));
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 405 "));
}

TEST_F(HttpPagesTest, EveryAnswerTellsBrowsersToBeCareful) {
  for (const char* line :
       {"GET /small", "GET /nothing", "POST /small", "HEAD /page", "GET /broken"}) {
    const std::string answer = AskFor(line);
    for (const char* header :
         {"Content-Security-Policy: default-src 'none'; frame-ancestors 'none'",
          "X-Frame-Options: DENY", "X-Content-Type-Options: nosniff", "Cache-Control: no-store",
          "Referrer-Policy: no-referrer", "Cross-Origin-Resource-Policy: same-origin"}) {
      EXPECT_THAT(answer, HasSubstr(std::string("\r\n") + header + "\r\n")) << line;
    }
    EXPECT_THAT(answer, ContainsRegex("\r\nDate: [A-Z][a-z]{2}, [0-9]{2} [A-Z][a-z]{2} [0-9]{4} "
                                      "[0-9]{2}:[0-9]{2}:[0-9]{2} GMT\r\n"))
        << line;
  }
  EXPECT_THAT(AskFor("GET /own"), AllOf(HasSubstr("X-Frame-Options: SAMEORIGIN\r\n"),
                                        Not(HasSubstr("X-Frame-Options: DENY"))));
}

TEST_F(HttpPagesTest, CompressesForClientsThatAskForIt) {
  const std::string answer = AskFor("GET /page", "Accept-Encoding: br;q=0.2, gzip\r\n");
  EXPECT_THAT(answer, HasSubstr("Content-Encoding: gzip\r\n"));
  EXPECT_EQ(Inflate(answer.substr(answer.find("\r\n\r\n") + 4)), std::string(5000, 'p'));
  EXPECT_THAT(AskFor("GET /page"), AllOf(Not(HasSubstr("Content-Encoding")), EndsWith("ppp")));
  EXPECT_THAT(AskFor("GET /small", "Accept-Encoding: gzip\r\n"),
              Not(HasSubstr("Content-Encoding")));
}

TEST_F(HttpPagesTest, BytesThatAreNoRequestAreRefused) {
  for (const char* bytes :
       {"\r\n\r\n\r\n", "GET\r\n\r\n", "GET /small\r\n\r\n", "GET /small HTTP/9.9\r\n\r\n",
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "\x16\x03\x01\x02\x01\x01\x01\xfc\x03\x03\r\n\r\n",
        "GET /small HTTP/1.1\r\nHost: localhost\r\nno colon\r\n\r\n"}) {
    EXPECT_THAT(Ask(bytes), StartsWith("HTTP/1.1 400 ")) << bytes;
  }
  const std::string long_name(HttpOptions().header_bytes, 'n');
  EXPECT_THAT(AskFor("GET /small", "X: " + long_name + "\r\n"), StartsWith("HTTP/1.1 431 "));
  EXPECT_THAT(AskFor("GET /" + long_name), StartsWith("HTTP/1.1 431 "));
  EXPECT_THAT(AskFor("GET /small"), EndsWith("small page\n"));
}

TEST_F(HttpPagesTest, APageThatFailsHarmsNoOther) {
  EXPECT_THAT(AskFor("GET /broken"), StartsWith("HTTP/1.1 500 "));
  EXPECT_THAT(AskFor("GET /small"), EndsWith("small page\n"));
}

// Some clients connect and send nothing, some begin a request, some ask for much and read nothing.
TEST_F(HttpPagesTest, ThousandsOfStalledConnectionsDoNotKeepOthersOut) {
  std::list<TcpConnection> stalled;
  for (int i = 0; i < 1000; ++i) {
    if (i >= 200) stalled.pop_front();  // the server has closed it long ago
    const TcpConnection& one = stalled.emplace_back(address_, /*receive_buffer=*/4096);
    if (i % 3 == 1) one.Send("GET /smal");
    if (i % 9 == 2) one.Send("GET /large HTTP/1.1\r\nHost: localhost\r\n\r\n");
    if (i % 10 > 0) continue;
    ASSERT_THAT(AskFor("GET /small"), EndsWith("small page\n"));
  }
  EXPECT_THAT(AskFor("GET /large"), EndsWith("xxx"));
}

TEST_F(HttpPagesTest, WithTooManyConnectionsTheOldestIsClosed) {
  std::vector<TcpConnection> idle;
  for (size_t i = 0; i < HttpOptions().connections + 1; ++i) idle.emplace_back(address_);
  EXPECT_EQ(idle[0].ReadAll(), "");
  idle[1].Send("GET /small HTTP/1.1\r\nHost: localhost\r\n\r\n");
  EXPECT_THAT(idle[1].ReadAll(), EndsWith("small page\n"));
}

TEST_F(HttpPagesTest, AConnectionThatTakesTooLongIsClosed) {
  Start(std::chrono::seconds(1));
  const TcpConnection reader(address_, /*receive_buffer=*/4096);
  reader.Send("GET /large HTTP/1.1\r\nHost: localhost\r\n\r\n");
  const TcpConnection silent(address_);
  std::string told;
  while (told.empty()) {  // on a slow machine its time may be over before it sends anything
    const TcpConnection half(address_);
    half.TrySend("GET /small HTTP/1.1\r\n");
    told = half.ReadAll();
  }
  EXPECT_THAT(told, StartsWith("HTTP/1.1 408 "));
  EXPECT_EQ(silent.ReadAll(), "");
  // Times of the same length end in the order in which they began. The reader's began before this
  // connection's, so it is over when this one's is.
  const TcpConnection after(address_);
  EXPECT_EQ(after.ReadAll(), "");
  EXPECT_LT(reader.ReadAll().size(), kLarge);
}

TEST_F(HttpPagesTest, OutlivesALackOfFileDescriptors) {
  auto none = std::make_unique<NoMoreFiles>(/*left=*/1);
  const auto begin = std::chrono::steady_clock::now();
  accepts_without_file = 0;
  const TcpConnection connection(address_);  // the last one that the process may have
  connection.Send("GET /small HTTP/1.1\r\nHost: localhost\r\n\r\n");
  // The server's thread waits before it tries again.
  while (accepts_without_file < 3) std::this_thread::yield();
  EXPECT_GE(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(200));
  none.reset();
  EXPECT_THAT(connection.ReadAll(), EndsWith("small page\n"));
}

TEST_F(HttpPagesTest, AConnectionThatCannotBeAcceptedIsLogged) {
  const CapturedLog log;
  const NoMoreFiles none(/*left=*/1);
  const TcpConnection connection(address_);
  while (log.Lines("server.accept_failed").empty()) std::this_thread::yield();
  EXPECT_EQ(log.Lines("server.accept_failed")[0]["error"], "Too many open files");
}

TEST(HttpRequestTest, AHeaderThatComesTwiceHasNoValue) {
  HttpRequest request;
  request.headers = {{"Authorization", "a"}, {"Origin", "x"}, {"authorization", "b"}};
  EXPECT_EQ(request.Header("Authorization"), "");
  EXPECT_EQ(request.Header("origin"), "x");
}

TEST_F(HttpPagesTest, EndsAtOnceEvenIfClientsAreConnected) {
  const TcpConnection silent(address_);
  const TcpConnection reader(address_, /*receive_buffer=*/4096);
  reader.Send("GET /large HTTP/1.1\r\nHost: localhost\r\n\r\n");
  server_.reset();
  EXPECT_EQ(silent.ReadAll(), "");
  EXPECT_LT(reader.ReadAll().size(), kLarge);
}

}  // namespace
}  // namespace aft::server

// Replaces the function of libc or of a sanitizer in the whole program.
extern "C" __attribute__((visibility("default"))) int accept(int fd, sockaddr* address,
                                                             socklen_t* size) {
  using Accept = int (*)(int, sockaddr*, socklen_t*);
  static const auto real = reinterpret_cast<Accept>(dlsym(RTLD_NEXT, "accept"));
  const int accepted = real(fd, address, size);
  if (accepted < 0 && errno == EMFILE) ++aft::server::accepts_without_file;
  return accepted;
}
