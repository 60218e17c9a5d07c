// Connections, requests with bodies and answers in parts, over sockets.
#include "server/http/http_server.h"

#include <chrono>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/tcp.h"
#include "tests/support/tls.h"
#include "tests/unit/http/http_server_fixture.h"

namespace aft::server {
namespace {

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

INSTANTIATE_TEST_SUITE_P(Transports, HttpServerTest, testing::Bool(),
                         [](const auto& transport) { return transport.param ? "Tls" : "Bare"; });

TEST_P(HttpServerTest, AConnectionServesRequestAfterRequest) {
  Start();
  const auto connection = Connect();
  for (const char* body : {"one", "two", ""}) {
    connection->Send(Post("/echo", body));
    EXPECT_THAT(connection->ReadTo(std::string("\r\n\r\n") + body),
                AllOf(StartsWith("HTTP/1.1 200 OK\r\n"), HasSubstr("Connection: keep-alive\r\n")));
  }
  connection->Send("\r\nGET /page HTTP/1.1\r\nHost: a\r\n\r\n");  // an empty line after a body
  EXPECT_THAT(connection->ReadTo("page\n"), HasSubstr("Content-Length: 5\r\n"));
  connection->Send(Post("/echo", "last", "Connection: close\r\n"));
  EXPECT_THAT(connection->ReadAll(), AllOf(HasSubstr("Connection: close\r\n"), EndsWith("last")));
  EXPECT_EQ(handler_.events.WaitFor(8), "sdsdsdsd");
}

TEST_P(HttpServerTest, RequestsThatComeTogetherAreAnsweredInTurn) {
  Start();
  const auto connection = Connect();
  connection->Send(Post("/echo", "first") + Post("/parts", "second") +
                   Post("/echo", "third", "Connection: close\r\n"));
  const std::string all = connection->ReadAll();
  const size_t first = all.find("first"), second = all.find("second"), third = all.find("third");
  EXPECT_LT(first, second);
  EXPECT_LT(second, third);
  EXPECT_NE(third, std::string::npos);
}

TEST_P(HttpServerTest, AnswersInPartsAreChunkedExceptForOldClients) {
  Start();
  const auto connection = Connect();
  connection->Send(Post("/parts", "0123456789abcdef0"));
  EXPECT_THAT(connection->ReadTo("0\r\n\r\n"),
              AllOf(HasSubstr("Transfer-Encoding: chunked\r\n"),
                    EndsWith("\r\n\r\n11\r\n0123456789abcdef0\r\n3\r\nend\r\n0\r\n\r\n")));
  connection->Send(Post("/echo", "again"));
  EXPECT_THAT(connection->ReadTo("again"), StartsWith("HTTP/1.1 200 "));
  const auto old = Connect();
  old->Send("POST /parts HTTP/1.0\r\nContent-Length: 2\r\n\r\nab");
  EXPECT_THAT(old->ReadAll(), AllOf(HasSubstr("Connection: close\r\n"), EndsWith("\r\n\r\nabend")));
  const auto kept = Connect();
  kept->Send("POST /parts HTTP/1.0\r\nConnection: keep-alive\r\nContent-Length: 2\r\n\r\nab");
  EXPECT_THAT(kept->ReadAll(),
              AllOf(HasSubstr("Connection: close\r\n"), EndsWith("\r\n\r\nabend")));
}

TEST_P(HttpServerTest, BodiesMayBeChunkedAndWaitForContinue) {
  Start();
  const auto connection = Connect();
  connection->Send(
      "POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
      "3\r\nabc\r\n2;x=y\r\nde\r\n0\r\n\r\n");
  EXPECT_THAT(connection->ReadTo("abcde"), HasSubstr("Content-Length: 5\r\n"));
  connection->Send(
      "POST /echo HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n");
  EXPECT_EQ(connection->ReadTo("\r\n\r\n"), "HTTP/1.1 100 Continue\r\n\r\n");
  connection->Send("more");
  EXPECT_THAT(connection->ReadTo("more"), StartsWith("HTTP/1.1 200 "));
  // A client that sends the body with the head does not wait for it.
  connection->Send(Post("/echo", "whole", "Expect: 100-continue\r\n"));
  EXPECT_THAT(connection->ReadTo("whole"), StartsWith("HTTP/1.1 200 "));
  const auto old = Connect();  // and HTTP/1.0 does not know it
  old->Send("POST /echo HTTP/1.0\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n");
  old->Send("more");
  EXPECT_THAT(old->ReadAll(), StartsWith("HTTP/1.1 200 "));
}

// The server takes each byte before the next one is sent.
TEST_P(HttpServerTest, BodiesMayArriveByteByByte) {
  Start();
  size_t seen = 0;
  for (const std::string body :
       {"0\r\n\r\n", "00\r\n\r\n", "0;x=y\r\n\r\n", "0\r\nA: b\r\n\r\n",
        "3\r\nabc\r\n2;x=y\r\nde\r\n0\r\n\r\n", "3\r\n0\r\n\r\n0\r\nA: b\r\nC: d\r\n\r\n"}) {
    const auto connection = Connect();
    connection->Send("POST /pieces HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n");
    for (const char byte : body) {
      handler_.events.WaitFor(++seen);
      connection->Send(std::string(1, byte));
    }
    EXPECT_THAT(connection->ReadTo("\r\n\r\n"), StartsWith("HTTP/1.1 200 ")) << body;
    seen += 3;  // the last byte was announced, the request was started and is done
    EXPECT_THAT(handler_.events.WaitFor(seen), EndsWith("esd")) << body;
  }
}

TEST_P(HttpServerTest, BodiesThatAreTooLargeAreNotRead) {
  Start();
  const auto ask = [this](const std::string& text) {
    const auto connection = Connect();
    connection->Send(text);
    return connection->ReadAll();
  };
  EXPECT_THAT(ask(Post("/echo", std::string(kMostBody + 1, 'b'))),
              AllOf(StartsWith("HTTP/1.1 413 "), EndsWith("refused\n")));
  EXPECT_THAT(ask("POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999999\r\n\r\n"),
              StartsWith("HTTP/1.1 413 "));
  EXPECT_THAT(ask("POST /deny HTTP/1.1\r\nHost: a\r\nContent-Length: 11\r\n\r\n"),
              AllOf(StartsWith("HTTP/1.1 429 "), EndsWith("too much\n")));
  std::string chunks =
      "POST /echo HTTP/1.1\r\nHost: a\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n";
  for (int i = 0; i < 200; ++i) chunks += "a\r\n0123456789\r\n";
  EXPECT_THAT(ask(chunks + "0\r\n\r\n"), StartsWith("HTTP/1.1 413 "));
  for (int i = 0; i < 4000; ++i) chunks += "a\r\n0123456789\r\n";
  EXPECT_THAT(ask(chunks), StartsWith("HTTP/1.1 413 "));  // before its end
  EXPECT_THAT(ask("POST /deny HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
                  "6\r\nabcdef\r\n6\r\nabcdef\r\n"),
              StartsWith("HTTP/1.1 429 "));
  EXPECT_THAT(ask("POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nno\r\n"),
              StartsWith("HTTP/1.1 400 "));
  EXPECT_EQ(handler_.events.WaitFor(5), "mmmmn");
  // The largest body is accepted, whether its length is announced or not.
  const std::string most(kMostBody, 'b');
  EXPECT_THAT(ask(Post("/echo", most, "Connection: close\r\n")), EndsWith("\r\n\r\n" + most));
  EXPECT_THAT(ask("POST /echo HTTP/1.1\r\nHost: a\r\nConnection: close\r\n"
                  "Transfer-Encoding: chunked\r\n\r\n3e8\r\n" +
                  most + "\r\n0\r\n\r\n"),
              EndsWith("\r\n\r\n" + most));
}

// Two readers of such a request could disagree on where it ends.
TEST_P(HttpServerTest, RequestsOfTwoLengthsAreRefusedAndEndTheConnection) {
  Start();
  for (const char* headers :
       {"Content-Length: 3\r\nContent-Length: 5\r\n",
        "Content-Length: 3\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding: chunked\r\nContent-Length: 3\r\n", "Transfer-Encoding: gzip\r\n",
        "Transfer-Encoding: chunked, identity\r\n", "Transfer-Encoding: xchunked\r\n",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n", "Content-Length: +3\r\n",
        "Content-Length: 3x\r\n", "Content-Length : 3\r\n", "Host: b\r\n"}) {
    const auto connection = Connect();
    connection->Send(std::string("POST /echo HTTP/1.1\r\nHost: a\r\n") + headers + "\r\n" +
                     Post("/echo", "smuggled"));
    const std::string answer = connection->ReadAll();
    EXPECT_THAT(answer, StartsWith("HTTP/1.1 400 ")) << headers;
    EXPECT_THAT(answer, testing::Not(HasSubstr("smuggled"))) << headers;
  }
  const auto old = Connect();  // HTTP/1.0 has no chunks
  old->Send("POST /echo HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n");
  EXPECT_THAT(old->ReadAll(), StartsWith("HTTP/1.1 400 "));
}

TEST_P(HttpServerTest, OnlyRequestsOfHttp10NeedNoHost) {
  Start();
  const auto ask = [this](const std::string& version) {
    const auto connection = Connect();
    connection->Send("GET /page HTTP/" + version + "\r\nConnection: close\r\n\r\n");
    return connection->ReadAll();
  };
  EXPECT_THAT(ask("1.1"), StartsWith("HTTP/1.1 400 "));
  EXPECT_THAT(ask("1.0"), StartsWith("HTTP/1.1 200 "));
}

TEST_P(HttpServerTest, AHeadIsNoLargerThanItMayBe) {
  Start();
  std::string fields;
  for (int i = 0; i < 2000; ++i) fields += "A: b\r\n";  // sent at once
  const auto connection = Connect();
  connection->Send("GET /page HTTP/1.1\r\nHost: a\r\n" + fields + "\r\n");
  EXPECT_THAT(connection->ReadAll(), StartsWith("HTTP/1.1 431 "));
  EXPECT_EQ(handler_.events.WaitFor(1), "M");
}

// The parser throws if a field has 64 KiB.
TEST_P(HttpServerTest, TooLongTrailersAreRefused) {
  Start({.body_bytes = size_t{4} << 20});
  for (const size_t bytes : {70'000, 1'000'000}) {
    const auto connection = Connect();
    connection->Send(
        "POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nA: " +
        std::string(bytes, 'x') + "\r\n\r\n");
    EXPECT_THAT(connection->ReadAll(), StartsWith("HTTP/1.1 431 ")) << bytes;
  }
  EXPECT_EQ(handler_.events.WaitFor(2), "nn");
}

TEST_P(HttpServerTest, AClientThatIsTooSlowIsTold) {
  constexpr std::chrono::milliseconds kShort{50};
  // A TLS handshake has to fit in.
  Start({.patience = std::chrono::milliseconds(500), .body_patience = kPatient, .idle = kPatient});
  // Reads up to `end`. On a slow machine the time of a connection may be over before it has sent
  // anything. Then it gets no answer, and another one is tried.
  std::unique_ptr<TcpConnection> connection;
  const auto ask = [&](const std::string& text, const std::string& end) {
    std::string answer;
    while (answer.empty()) {
      connection = Connect();
      connection->TrySend(text);
      answer = connection->ReadTo(end);
    }
    return answer;
  };
  const auto silent = Connect();
  const std::string never(1, '\0');
  EXPECT_THAT(ask("POST /echo HT", never), StartsWith("HTTP/1.1 408 "));
  EXPECT_EQ(silent->ReadAll(), "");  // it has sent no part of a head
  EXPECT_THAT(ask(Post("/echo", "x"), "\r\n\r\nx"), StartsWith("HTTP/1.1 200 "));
  connection->Send("POST /echo HT");
  EXPECT_THAT(connection->ReadAll(), StartsWith("HTTP/1.1 408 "));
  EXPECT_THAT(ask(Post("/echo", "x") + "POST /echo HT", never),
              AllOf(StartsWith("HTTP/1.1 200 "), HasSubstr("HTTP/1.1 408 ")));
  EXPECT_EQ(handler_.events.WaitFor(7), "LsdLsdL");
  Start({.patience = kPatient, .body_patience = kShort, .idle = kPatient});
  const auto body = Connect();
  body->Send("POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nabc");
  EXPECT_THAT(body->ReadAll(), StartsWith("HTTP/1.1 408 "));
  EXPECT_EQ(handler_.events.WaitFor(8), "LsdLsdLl");
  Start({.body_patience = kPatient, .idle = kShort});
  for (const char* line : {"", "\r\n"}) {  // an empty line after a body begins no request
    const auto idle = Connect();
    idle->Send(Post("/echo", "x") + line);
    EXPECT_THAT(idle->ReadAll(), EndsWith("\r\n\r\nx"));
  }
}

// Without care, OpenSSL reads records without data in one call for as long as there are some.
TEST_P(HttpServerTest, ChangesOfKeysDoNotDelayOtherConnections) {
  if (!GetParam()) GTEST_SKIP() << "TLS has keys";
  Start();
  const TlsConnection floods(address_, authority_);
  const auto other = Connect();
  floods.Send(Post("/order", "1"));
  EXPECT_THAT(floods.ReadTo("\r\n\r\n1"), StartsWith("HTTP/1.1 200 "));
  const auto waits = Connect();
  waits->Send("GET /wait HTTP/1.1\r\nHost: a\r\n\r\n");
  handler_.waiting.get_future().wait();
  for (int i = 0; i < 1000; ++i) floods.UpdateKey();
  floods.Send(Post("/order", "3"));
  other->Send(Post("/order", "2"));
  handler_.go.set_value();
  EXPECT_EQ(handler_.events.WaitFor(6), "1d2d3d");
}

TEST_P(HttpServerTest, NoticesThatAClientHasGone) {
  Start();
  {
    const auto connection = Connect();
    connection->Send(Post("/hold", ""));
    EXPECT_EQ(handler_.events.WaitFor(1), "s");
  }
  EXPECT_EQ(handler_.events.WaitFor(2), "sg");
  handler_.go.set_value();  // too late: nothing is sent
}

TEST_P(HttpServerTest, NoticesThatAClientDoesNotRead) {
  Start({.patience = std::chrono::seconds(1)});  // a TLS handshake has to fit in
  std::unique_ptr<TcpConnection> connection;
  do {  // on a slow machine the time may be over before the request is sent
    connection = Connect(/*receive_buffer=*/4096);
    connection->TrySend(Post("/large", ""));
  } while (connection->ReadTo("\r\n\r\n").empty());
  EXPECT_EQ(handler_.events.WaitFor(3), "skw");  // the callback of the part is called too
}

// Times of the same length end in the order in which they began. So the time of a client that reads
// has begun again if it ends after the time of a head that began meanwhile.
TEST_P(HttpServerTest, AClientThatReadsHasAllItsTimeAgain) {
  // The sockets held less than this when the time of the head began, and they cannot hold the rest.
  constexpr size_t kSome = size_t{3} << 20;
  std::unique_ptr<TcpConnection> reads;
  std::unique_ptr<TcpConnection> head;
  size_t before = 0;  // events of earlier attempts
  // Returns false if the time of a connection was over too soon, as on a slow machine.
  const auto attempt = [&] {
    Start({.patience = std::chrono::seconds(1)});  // a TLS handshake has to fit in
    before = handler_.events.WaitFor(0).size();
    reads = Connect(/*receive_buffer=*/65536);
    reads->TrySend(Post("/large", ""));
    if (reads->ReadTo("\r\n\r\n").empty()) return false;
    head = Connect();
    head->TrySend(Post("/echo", "x") + "POST /echo HT");
    return !head->ReadTo("\r\n\r\nx").empty() && reads->Read(kSome).size() == kSome;
  };
  while (!attempt()) continue;
  EXPECT_EQ(handler_.events.WaitFor(before + 6).substr(before), "ssdLkw");
}

TEST_P(HttpServerTest, ClosesConnectionsWhoseClientsDoNotRead) {
  Start({.patience = std::chrono::hours(1)});
  const auto connection = Connect(/*receive_buffer=*/4096);
  connection->Send(Post("/large", ""));
  handler_.events.WaitFor(1);
  server_->CloseConnections();
  EXPECT_EQ(handler_.events.WaitFor(3), "sgw");
}

TEST_P(HttpServerTest, PostedWorkRunsInOrderAndEvenIfOtherWorkThrows) {
  Start();
  const auto connection = Connect();
  const auto answer = AnswerTo(*connection);
  const auto waits = Connect();
  waits->Send("GET /wait HTTP/1.1\r\nHost: a\r\n\r\n");
  handler_.waiting.get_future().wait();
  for (const char* part : {"a", "b", "", "c"}) {  // while the server's thread is busy
    answer->Post([answer, text = std::string(part)] {
      if (text.empty()) throw std::bad_alloc();
      EXPECT_TRUE(answer->Write(text));
      if (text == "c") answer->Post([answer] { answer->End("d"); });
    });
  }
  handler_.go.set_value();
  EXPECT_THAT(connection->ReadAll(),
              EndsWith("\r\n\r\n1\r\na\r\n1\r\nb\r\n1\r\nc\r\n1\r\nd\r\n0\r\n\r\n"));
}

TEST_P(HttpServerTest, WithTooManyConnectionsOneWithoutARequestIsClosed) {
  Start({.connections = 2});
  const auto holds = Connect();
  holds->Send(Post("/hold", ""));
  handler_.events.WaitFor(1);
  const auto idle = Connect();
  idle->Send(Post("/echo", "x"));
  EXPECT_THAT(idle->ReadTo("\r\n\r\nx"), StartsWith("HTTP/1.1 200 "));
  const auto third = Connect();
  third->Send(Post("/echo", "y"));
  EXPECT_THAT(third->ReadTo("\r\n\r\ny"), StartsWith("HTTP/1.1 200 "));
  EXPECT_EQ(idle->ReadAll(), "");
  handler_.go.set_value();
  EXPECT_THAT(holds->ReadTo("held\n"), StartsWith("HTTP/1.1 200 "));
}

TEST_P(HttpServerTest, AnAddressHasNoMoreThanItsShare) {
  Start({.connections = 10, .address_connections = 1});
  const auto holds = Connect();
  holds->Send(Post("/hold", ""));
  handler_.events.WaitFor(1);
  const auto second = Connect();
  EXPECT_EQ(second->ReadAll(), "");
  handler_.go.set_value();
  EXPECT_THAT(holds->ReadTo("held\n"), StartsWith("HTTP/1.1 200 "));
}

// The newcomer has no idle connection of its own, and closes none of another address.
TEST_P(HttpServerTest, AnAddressBeyondItsShareTakesNoPlaceOfOthers) {
  if (GetParam()) GTEST_SKIP() << "TlsConnection has one address";
  Start({.connections = 10, .address_connections = 1});
  const TcpConnection other(address_, /*receive_buffer=*/0, "127.0.0.2");
  other.Send(Post("/echo", "x"));
  EXPECT_THAT(other.ReadTo("\r\n\r\nx"), StartsWith("HTTP/1.1 200 "));
  const auto holds = Connect();
  holds->Send(Post("/hold", ""));
  handler_.events.WaitFor(3);
  EXPECT_EQ(Connect()->ReadAll(), "");
  other.Send(Post("/echo", "y"));
  EXPECT_THAT(other.ReadTo("\r\n\r\ny"), StartsWith("HTTP/1.1 200 "));
  handler_.go.set_value();
  EXPECT_THAT(holds->ReadTo("held\n"), StartsWith("HTTP/1.1 200 "));
}

TEST_P(HttpServerTest, ADrainLetsRunningRequestsEnd) {
  Start();
  const auto holds = Connect();
  holds->Send(Post("/hold", ""));
  handler_.events.WaitFor(1);
  const auto sends = Connect();
  sends->Send(
      "POST /echo HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n");
  EXPECT_EQ(sends->ReadTo("\r\n\r\n"), "HTTP/1.1 100 Continue\r\n\r\n");
  const auto silent = Connect();
  const auto idle = Connect();
  idle->Send(Post("/echo", "x"));
  EXPECT_THAT(idle->ReadTo("\r\n\r\nx"), StartsWith("HTTP/1.1 200 "));
  server_->BeginDrain();
  EXPECT_EQ(silent->ReadAll(), "");
  EXPECT_EQ(idle->ReadAll(), "");
  sends->Send("body");
  EXPECT_THAT(sends->ReadAll(),
              AllOf(HasSubstr("Connection: close\r\n"), EndsWith("\r\n\r\nbody")));
  handler_.go.set_value();
  EXPECT_THAT(holds->ReadAll(), EndsWith("held\n"));
}

}  // namespace
}  // namespace aft::server
