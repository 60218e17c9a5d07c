// How clients are identified, and how much memory their calls may hold.
#include <openssl/sha.h>
#include <sys/stat.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/admission/client_directory.h"
#include "server/admission/memory_ledger.h"
#include "server/admission/peer_address.h"
#include "server/config/clients_file.h"
#include "server/observability/log.h"
#include "tests/support/no_more_files.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_files.h"

namespace aft::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class LedgerTest : public testing::Test {
 protected:
  double Gauge() const { return metrics_.memory_used.Value(); }

  prometheus::Registry registry_;
  ServerMetrics metrics_{registry_, {.version = "test"}};
  MemoryLedger ledger_{1000, 600, metrics_};
  const Client alice_{.name = "alice"};
  const Client bob_{.name = "bob"};
};

TEST_F(LedgerTest, AClientAndTheProcessHaveABudgetEach) {
  MemoryLedger::Charge first(ledger_, alice_);
  MemoryLedger::Charge second(ledger_, alice_);
  EXPECT_TRUE(first.Resize(400));
  EXPECT_FALSE(second.Resize(201));  // more than alice's 600
  EXPECT_TRUE(second.Resize(200));
  MemoryLedger::Charge third(ledger_, bob_);
  EXPECT_FALSE(third.Resize(401));  // more than the process' 1000
  EXPECT_TRUE(third.Resize(400));
  EXPECT_EQ(ledger_.used(), 1000);
  EXPECT_EQ(Gauge(), 1000);
  EXPECT_EQ(metrics_.memory_limit.Value(), 1000);
}

TEST_F(LedgerTest, ARefusalChangesNothing) {
  MemoryLedger::Charge charge(ledger_, alice_);
  MemoryLedger::Charge other(ledger_, bob_);
  ASSERT_TRUE(charge.Resize(500));
  ASSERT_TRUE(other.Resize(450));
  EXPECT_FALSE(charge.Resize(551));  // beyond the process
  EXPECT_FALSE(charge.Resize(601));  // beyond the client
  EXPECT_EQ(ledger_.used(), 950);
  EXPECT_TRUE(charge.Resize(550));
  EXPECT_TRUE(charge.Resize(10));
  EXPECT_EQ(ledger_.used(), 460);
}

TEST_F(LedgerTest, AllIsGivenBackAndClientsAreForgotten) {
  {
    MemoryLedger::Charge charge(ledger_, alice_);
    ASSERT_TRUE(charge.Resize(500));
    MemoryLedger::Charge moved = std::move(charge);
    EXPECT_EQ(ledger_.clients(), 1U);
    MemoryLedger::Charge other(ledger_, bob_);
    ASSERT_TRUE(other.Resize(300));
    EXPECT_EQ(ledger_.clients(), 2U);
    other = MemoryLedger::Charge();
    EXPECT_EQ(ledger_.used(), 500);
    EXPECT_EQ(ledger_.clients(), 1U);
    other = std::move(moved);  // into an empty charge
    EXPECT_EQ(ledger_.used(), 500);
  }
  EXPECT_EQ(ledger_.used(), 0);
  EXPECT_EQ(ledger_.clients(), 0U);
  EXPECT_EQ(Gauge(), 0);
}

TEST_F(LedgerTest, AClosedChargeHoldsNothing) {
  MemoryLedger::Charge charge(ledger_, alice_);
  ASSERT_TRUE(charge.Resize(500));
  EXPECT_EQ(charge.bytes(), 500);
  for (int i = 0; i < 2; ++i) {
    charge.Close();
    EXPECT_EQ(charge.bytes(), 0);
    EXPECT_EQ(ledger_.used(), 0);
    EXPECT_EQ(ledger_.clients(), 0U);
    EXPECT_TRUE(charge.Resize(10'000));
    EXPECT_EQ(ledger_.used(), 0);
  }
}

TEST_F(LedgerTest, AClientMayHaveALimitOfItsOwn) {
  MemoryLedger::Charge charge(ledger_, Client{.name = "small", .max_memory_bytes = 50});
  EXPECT_FALSE(charge.Resize(51));
  EXPECT_TRUE(charge.Resize(50));
  // The file of clients was read again, and the client still has a charge.
  MemoryLedger::Charge later(ledger_, Client{.name = "small", .max_memory_bytes = 80});
  EXPECT_FALSE(later.MayEverHold(81));
  EXPECT_FALSE(later.Resize(31));
  EXPECT_TRUE(later.Resize(30));
}

// Where this is false, a retry makes no sense.
TEST_F(LedgerTest, ChargesKnowWhatTheyMayEverHold) {
  const MemoryLedger::Charge charge(ledger_, alice_);
  EXPECT_TRUE(charge.MayEverHold(600));
  EXPECT_FALSE(charge.MayEverHold(601));
  const MemoryLedger::Charge vast(ledger_, Client{.name = "vast", .max_memory_bytes = 5000});
  EXPECT_TRUE(vast.MayEverHold(1000));
  EXPECT_FALSE(vast.MayEverHold(1001));  // more than the process' 1000
}

TEST_F(LedgerTest, ThreadsLeaveNothingBehind) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([this, t] {
      for (int i = 0; i < 2000; ++i) {
        MemoryLedger::Charge charge(ledger_, t % 2 == 0 ? alice_ : bob_);
        charge.Resize(i % 700);
        EXPECT_LE(ledger_.used(), 1000);  // a refused charge never counts
        charge.Resize(i % 300);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(ledger_.used(), 0);
  EXPECT_EQ(ledger_.clients(), 0U);
}

std::vector<IpNetwork> Networks(const std::vector<std::string>& texts) {
  std::vector<IpNetwork> networks;
  for (const std::string& text : texts) {
    const absl::StatusOr<IpNetwork> network = IpNetwork::Parse(text);
    EXPECT_TRUE(network.ok()) << network.status();
    networks.push_back(*network);
  }
  return networks;
}

TEST(ClientNameTest, IsTheAddressWithoutPort) {
  EXPECT_EQ(ClientNameOf("ipv4:10.0.0.7:4711", "", {}), "10.0.0.7");
  EXPECT_EQ(ClientNameOf("ipv6:%5B::1%5D:4711", "", {}), "::/64");
  EXPECT_EQ(ClientNameOf("ipv6:[::ffff:10.0.0.7]:4711", "", {}), "10.0.0.7");
  EXPECT_EQ(ClientNameOf("ipv6:%5Bfe80::1%25eth0%5D:1", "", {}), "fe80::/64");
  EXPECT_EQ(ClientNameOf("unix:/run/x", "", {}), "local");
  EXPECT_EQ(ClientNameOf("unix:10.0.0.7", "", {}), "local");
  EXPECT_EQ(ClientNameOf("ipv4:nonsense", "", {}), "unknown");
}

TEST(ClientNameTest, AProxyIsKnownByTheAddressOfTheConnection) {
  const std::vector<IpNetwork> proxies = Networks({"10.0.0.0/8", "::1"});
  EXPECT_TRUE(ComesFromProxy("ipv4:10.0.0.7:4711", proxies));
  EXPECT_TRUE(ComesFromProxy("ipv6:%5B::1%5D:4711", proxies));
  EXPECT_FALSE(ComesFromProxy("ipv4:11.0.0.7:4711", proxies));
  EXPECT_FALSE(ComesFromProxy("unix:10.0.0.7", proxies));
  EXPECT_FALSE(ComesFromProxy("ipv4:10.0.0.7:4711", {}));
}

TEST(ClientNameTest, ASubscriberOfVersion6IsOneClient) {
  EXPECT_EQ(ClientNameOf("ipv6:[2001:db8:1:2:3:4:5:6]:1", "", {}), "2001:db8:1:2::/64");
  EXPECT_EQ(ClientNameOf("ipv6:[2001:db8:1:2:ffff::9]:1", "", {}), "2001:db8:1:2::/64");
  EXPECT_EQ(ClientNameOf("ipv6:[2001:db8:1:3::9]:1", "", {}), "2001:db8:1:3::/64");
}

TEST(ClientNameTest, BehindAProxyItIsTheLastAddressThatIsNoProxy) {
  const auto proxies = Networks({"10.0.0.0/8", "::1"});
  const auto name = [&](const char* peer, const char* forwarded) {
    return ClientNameOf(peer, forwarded, proxies);
  };
  EXPECT_EQ(name("ipv4:10.1.2.3:1", "203.0.113.9"), "203.0.113.9");
  EXPECT_EQ(name("ipv4:10.1.2.3:1", "6.6.6.6, 203.0.113.9"), "203.0.113.9");  // the first: forged
  EXPECT_EQ(name("ipv4:10.1.2.3:1", "203.0.113.9, 10.9.9.9"), "203.0.113.9");
  EXPECT_EQ(name("ipv6:[::1]:1", "203.0.113.9:5555"), "203.0.113.9");
  EXPECT_EQ(name("ipv4:10.1.2.3:1", "10.4.4.4, 10.5.5.5"), "10.4.4.4");
  EXPECT_EQ(name("ipv4:10.1.2.3:1", ""), "10.1.2.3");
  EXPECT_EQ(name("ipv4:10.1.2.3:1", "203.0.113.9, junk"), "10.1.2.3");
  EXPECT_EQ(name("ipv4:11.1.2.3:1", "203.0.113.9"), "11.1.2.3");  // no proxy, so not believed
  EXPECT_EQ(name("ipv6:[::2]:1", "203.0.113.9"), "::/64");
}

TEST(IpAddressTest, IsTheWholeText) {
  for (const char* good : {"10.0.0.7", " 10.0.0.7 ", "10.0.0.7:80", "[10.0.0.7]", "::ffff:10.0.0.7",
                           "[::ffff:10.0.0.7]", "[::ffff:10.0.0.7%eth0]:80"}) {
    const absl::StatusOr<IpAddress> address = IpAddress::Parse(good);
    ASSERT_TRUE(address.ok()) << good;
    EXPECT_EQ(address->ClientName(), "10.0.0.7") << good;
  }
  using namespace std::string_literals;
  for (const std::string& bad :
       {""s, "10.0.0.7x"s, "10.0.0.7:"s, "10.0.0.7:x"s, "10.0.0.7:80x"s, "[::1"s, "[::1]x"s,
        "[::1]80"s, "[::1]:"s, "[::1]:80 x"s, "10.0.0.7\0"s, "::1\0x"s, "10.0.0.7\0x:80"s}) {
    EXPECT_EQ(IpAddress::Parse(bad).status().code(), absl::StatusCode::kInvalidArgument) << bad;
  }
}

TEST(IpNetworkTest, HoldsItsPrefixAndNothingElse) {
  const auto holds = [](const char* network, const char* address) {
    return IpNetwork::Parse(network)->Contains(*IpAddress::Parse(address));
  };
  EXPECT_TRUE(holds("192.168.4.0/22", "192.168.7.255"));
  EXPECT_FALSE(holds("192.168.4.0/22", "192.168.8.0"));
  EXPECT_FALSE(holds("192.168.4.0/22", "192.168.3.255"));
  EXPECT_TRUE(holds("0.0.0.0/0", "255.1.1.1"));
  EXPECT_FALSE(holds("0.0.0.0/0", "2001:db8::1"));
  EXPECT_TRUE(holds("2001:db8::/33", "2001:db8:7fff::1"));
  EXPECT_FALSE(holds("2001:db8::/33", "2001:db8:8000::1"));
  EXPECT_FALSE(holds("10.0.0.1", "10.0.0.2"));
  for (const char* bad :
       {"", "10.0.0.0/33", "10.0.0.0/-1", "10.0.0.0/", "x/8", "::/129", "1.2.3"}) {
    EXPECT_EQ(IpNetwork::Parse(bad).status().code(), absl::StatusCode::kInvalidArgument) << bad;
  }
}

std::string Sha256(const std::string& token) {
  unsigned char hash[SHA256_DIGEST_LENGTH];
  SHA256(reinterpret_cast<const unsigned char*>(token.data()), token.size(), hash);
  return absl::BytesToHexString(
      absl::string_view(reinterpret_cast<const char*>(hash), sizeof(hash)));
}

std::string Line(const std::string& name, const std::string& token) {
  return absl::StrCat("clients { name: '", name, "' token_sha256: '", Sha256(token), "' }\n");
}

TEST(ClientsFileTest, ReadsEveryField) {
  const auto file = ParseClientsFile(
      absl::StrCat("clients { name: 'a' token_sha256: '", Sha256("t1"), "' token_sha256: '",
                   Sha256("t2"), "' certificate: 'spiffe://x/a' models: 'm1' models: 'm2' ",
                   "weight: 2.5 max_slots: 3 max_queued_requests: 4 max_memory_bytes: 5 ",
                   "admin: true shares_by_user: true } ", Line("b", "t3")),
      "f");
  ASSERT_TRUE(file.ok()) << file.status();
  const KnownClient& known = file->clients.at(0);
  EXPECT_EQ(known.token_sha256.size(), 2U);
  EXPECT_THAT(known.certificates, ElementsAre("spiffe://x/a"));
  EXPECT_EQ(known.client->name, "a");
  EXPECT_EQ(known.client->weight, 2.5);
  EXPECT_EQ(known.client->max_slots, 3);
  EXPECT_EQ(known.client->max_queued_requests, 4);
  EXPECT_EQ(known.client->max_memory_bytes, 5);
  EXPECT_THAT(known.client->models, ElementsAre("m1", "m2"));
  EXPECT_TRUE(known.client->admin);
  EXPECT_TRUE(known.client->shares_by_user);
  EXPECT_FALSE(file->clients.at(1).client->admin);
  EXPECT_FALSE(file->clients.at(1).client->shares_by_user);
}

TEST(ClientsFileTest, EveryFaultIsNamed) {
  const std::string token = absl::StrCat("token_sha256: '", Sha256("t"), "'");
  const std::pair<std::string, std::string> faults[] = {
      {"clients { nam: 'a' }", "f:1:14: "},
      {"clients { " + token + " }", "f: clients[0].name: "},
      {"clients { name: 'a b' " + token + " }", "f: clients[0].name: "},
      {"clients { name: 'a' }", "f: clients[0]: must have"},
      {"clients { name: 'a' token_sha256: 'abc' }", "f: clients[0].token_sha256[0]: "},
      {"clients { name: 'a' token_sha256: '" + std::string(64, 'g') + "' }",
       "f: clients[0].token_sha256[0]: "},
      {"clients { name: 'a' certificate: '' }", "f: clients[0].certificate[0]: "},
      {"clients { name: 'a' weight: 0 " + token + " }", "f: clients[0].weight: "},
      {"clients { name: 'a' weight: nan " + token + " }", "f: clients[0].weight: "},
      {"clients { name: 'a' weight: 101 " + token + " }", "f: clients[0].weight: "},
      {"clients { name: 'a' max_slots: -1 " + token + " }", "f: clients[0].max_slots: "},
      {"clients { name: 'a' max_queued_requests: -1 " + token + " }",
       "f: clients[0].max_queued_requests: "},
      {"clients { name: 'a' max_memory_bytes: -1 " + token + " }",
       "f: clients[0].max_memory_bytes: "},
      {"count: 2 " + Line("a", "t"), "f: count: the file must have 2 clients, but has 1"},
      {"count: 0 " + Line("a", "t"), "f: count: the file must have 0 clients, but has 1"},
      {Line("a", "t") + Line("a", "u"), "f: clients[1].name: occurs twice in the file"},
      {Line("a", "t") + Line("b", "t"), "f: clients[1].token_sha256[0]: occurs twice in the file"},
      {"clients { name: 'a' certificate: 'c' } clients { name: 'b' certificate: 'c' }",
       "f: clients[1].certificate[0]: occurs twice in the file"},
  };
  for (const auto& [text, message] : faults) {
    EXPECT_THAT(ParseClientsFile(text, "f").status(),
                StatusIs(absl::StatusCode::kInvalidArgument, testing::StartsWith(message)))
        << text;
  }
}

// The file may be cut anywhere, also between two clients.
TEST(ClientsFileTest, AFileThatSaysHowManyClientsItHasIsRefusedWhereverItIsCut) {
  const std::string text = "count: 3\n" + Line("a", "t") + Line("b", "u") + Line("c", "v");
  EXPECT_TRUE(ParseClientsFile(text, "f").ok());
  for (size_t size = std::string("count: 3").size(); size < text.size() - 1; ++size) {
    EXPECT_FALSE(ParseClientsFile(text.substr(0, size), "f").ok()) << size;
  }
}

TEST(ClientsFileTest, EveryQuotaHoldsItsEndsAndNothingBeyond) {
  const auto ok = [](const std::string& field, const std::string& value) {
    const std::string text =
        absl::StrCat("clients { name: 'a' certificate: 'c' ", field, ": ", value, " }");
    const absl::Status status = ParseClientsFile(text, "f").status();
    if (!status.ok()) {
      EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument,
                                   HasSubstr("clients[0]." + field + ": must be in [")));
    }
    return status.ok();
  };
  for (const char* value : {"0.01", "100"}) EXPECT_TRUE(ok("weight", value)) << value;
  for (const char* value : {"0.0099", "100.01"}) EXPECT_FALSE(ok("weight", value)) << value;
  for (const char* field : {"max_slots", "max_queued_requests", "max_memory_bytes"}) {
    EXPECT_TRUE(ok(field, "0")) << field;
    EXPECT_TRUE(ok(field, "2147483647")) << field;
    EXPECT_FALSE(ok(field, "-1")) << field;
  }
  EXPECT_TRUE(ok("max_memory_bytes", "9223372036854775807"));
}

TEST(ClientDirectoryTest, FindsByTokenAndCertificateAndReadsChanges) {
  const TempFolder folder;
  const std::string path = folder.File("clients.textproto");
  const auto write = [&](const std::string& text) {
    std::ofstream(path + ".new") << text;
    std::rename((path + ".new").c_str(), path.c_str());
  };
  write(Line("a", "secret") + "clients { name: 'b' certificate: 'host.example' }");
  const auto directory = ClientDirectory::Load(path, std::chrono::hours(1));
  ASSERT_TRUE(directory.ok()) << directory.status();
  EXPECT_EQ((*directory)->FindToken("secret")->name, "a");
  EXPECT_EQ((*directory)->FindToken("Secret"), nullptr);
  EXPECT_EQ((*directory)->FindToken(""), nullptr);
  EXPECT_EQ((*directory)->FindCertificate("host.example")->name, "b");
  EXPECT_EQ((*directory)->FindCertificate("host"), nullptr);
  EXPECT_THAT((*directory)->Names(), ElementsAre("a", "b"));

  write(Line("a", "changed"));
  EXPECT_NE((*directory)->FindToken("secret"), nullptr);  // not yet
  (*directory)->Refresh();
  EXPECT_EQ((*directory)->FindToken("secret"), nullptr);
  EXPECT_EQ((*directory)->FindToken("changed")->name, "a");

  EXPECT_FALSE((*directory)->rejected());
  write("clients {");
  (*directory)->Refresh();
  EXPECT_TRUE((*directory)->rejected());
  EXPECT_EQ((*directory)->FindToken("changed")->name, "a");
  std::remove(path.c_str());
  (*directory)->Refresh();
  EXPECT_TRUE((*directory)->rejected());
  EXPECT_EQ((*directory)->FindToken("changed")->name, "a");
  write(Line("c", "late"));
  (*directory)->Refresh();
  EXPECT_FALSE((*directory)->rejected());
  EXPECT_EQ((*directory)->FindToken("late")->name, "c");
}

TEST(ClientDirectoryTest, AFileThatDoesNotSayHowManyClientsItHasIsLogged) {
  const TempFolder folder;
  const std::string path = folder.File("clients.textproto");
  for (const bool counted : {false, true}) {
    std::ofstream(path) << (counted ? "count: 1 " : "") << Line("a", "secret");
    testing::internal::CaptureStderr();
    EXPECT_TRUE(ClientDirectory::Load(path, std::chrono::hours(1)).ok());
    log::Flush(std::chrono::hours(1));
    const std::string lines = testing::internal::GetCapturedStderr();
    EXPECT_EQ(absl::StrContains(lines, "level=warning event=clients.uncounted path=" + path),
              !counted)
        << lines;
  }
}

// The hash of a token always has the same length.
TEST(ClientDirectoryTest, AFileThatIsEditedInPlaceAndKeepsItsSizeIsReadAgain) {
  const TempFolder folder;
  const std::string path = folder.File("clients.textproto");
  std::ofstream(path) << Line("a", "leaked");
  std::filesystem::last_write_time(path,
                                   std::filesystem::last_write_time(path) - std::chrono::hours(1));
  const auto directory = ClientDirectory::Load(path, std::chrono::hours(1));
  ASSERT_TRUE(directory.ok()) << directory.status();
  std::ofstream(path) << Line("a", "new");
  (*directory)->Refresh();
  EXPECT_EQ((*directory)->FindToken("leaked"), nullptr);
  EXPECT_NE((*directory)->FindToken("new"), nullptr);
}

TEST(ClientDirectoryTest, AFileThatStillChangesIsLeftAlone) {
  const TempFolder folder;
  const std::string path = folder.File("clients.textproto");
  std::ofstream(path) << Line("a", "secret") + Line("b", "other");
  const auto directory = ClientDirectory::Load(path, std::chrono::hours(1));
  ASSERT_TRUE(directory.ok()) << directory.status();
  int changes = 0;
  (*directory)->OnChange([&] { ++changes; });
  (*directory)->Look();
  std::ofstream(path) << Line("a", "secret");
  (*directory)->Look();
  EXPECT_NE((*directory)->FindToken("other"), nullptr);
  std::ofstream(path) << Line("a", "secret") + Line("b", "other") + Line("c", "third");
  (*directory)->Look();
  EXPECT_NE((*directory)->FindToken("other"), nullptr);
  EXPECT_EQ((*directory)->FindToken("third"), nullptr);
  (*directory)->Look();
  EXPECT_NE((*directory)->FindToken("third"), nullptr);
  (*directory)->Look();
  EXPECT_EQ(changes, 1);
}

TEST(ClientDirectoryTest, LooksForChangesByItself) {
  const TempFolder folder;
  const std::string path = folder.File("clients.textproto");
  std::ofstream(path) << Line("a", "secret");
  const auto directory = ClientDirectory::Load(path, std::chrono::seconds(0));  // all the time
  ASSERT_TRUE(directory.ok()) << directory.status();
  std::ofstream(path + ".new") << Line("b", "changed");
  std::filesystem::rename(path + ".new", path);
  while ((*directory)->FindToken("changed") == nullptr) std::this_thread::yield();
  EXPECT_EQ((*directory)->FindToken("secret"), nullptr);
}

TEST(ClientDirectoryTest, AFileThatCouldNotBeReadIsReadAgainOnceItCan) {
  const TempFolder folder;
  const std::string path = folder.File("clients.textproto");
  std::ofstream(path) << Line("a", "secret");
  const auto directory = ClientDirectory::Load(path, std::chrono::hours(1));
  ASSERT_TRUE(directory.ok()) << directory.status();
  std::ofstream(path) << Line("a", "changed") + Line("b", "other");
  const auto logs = [&] {
    testing::internal::CaptureStderr();
    {
      const NoMoreFiles none;
      (*directory)->Refresh();
    }
    log::Flush(std::chrono::hours(1));
    return absl::StrContains(testing::internal::GetCapturedStderr(), "clients.reload_failed");
  };
  EXPECT_TRUE(logs());
  EXPECT_FALSE(logs());  // once is enough
  EXPECT_TRUE((*directory)->rejected());
  std::ofstream(path) << Line("a", "changed");
  EXPECT_TRUE(logs());  // another file, although with the same error
  EXPECT_NE((*directory)->FindToken("secret"), nullptr);
  (*directory)->Refresh();
  EXPECT_FALSE((*directory)->rejected());
  EXPECT_NE((*directory)->FindToken("changed"), nullptr);
}

// A pipe is an older file whose reader is slow.
TEST(ClientDirectoryTest, AFileThatIsReplacedWhileItIsReadCountsForNothing) {
  const TempFolder folder;
  const std::string path = folder.File("clients.textproto");
  std::ofstream(path) << Line("a", "first");
  const auto directory = ClientDirectory::Load(path, std::chrono::hours(1));
  ASSERT_TRUE(directory.ok()) << directory.status();
  std::filesystem::remove(path);
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  std::thread reader([&] { (*directory)->Refresh(); });
  {
    std::ofstream older(path);  // waits until the reader has opened the pipe
    EXPECT_NE((*directory)->FindToken("first"), nullptr);
    std::ofstream(path + ".new") << Line("a", "newer");
    std::filesystem::rename(path + ".new", path);
    older << Line("a", "older");
  }
  reader.join();
  EXPECT_NE((*directory)->FindToken("first"), nullptr);
  (*directory)->Refresh();
  EXPECT_NE((*directory)->FindToken("newer"), nullptr);
}

TEST(ClientDirectoryTest, AFileThatCannotBeReadIsNamed) {
  EXPECT_THAT(ClientDirectory::Load("no/such/file", std::chrono::hours(1)).status(),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("no/such/file")));
}

}  // namespace
}  // namespace aft::server
