// URLs, listings and settings of object stores, as Amazon's documents have them.
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "bucket/bucket_url.h"
#include "bucket/buckets.h"
#include "bucket/credentials.h"
#include "bucket/listing.h"
#include "bucket/secrets.h"
#include "bucket/web_folder.h"
#include "dsckpt/error.h"
#include "support/temp_file.h"

namespace dsckpt {
namespace {

TEST(BucketUrl, HasABucketAndAPrefix) {
  EXPECT_TRUE(is_url("s3://a"));
  EXPECT_FALSE(is_url("s3:/a"));
  EXPECT_FALSE(is_url("a/b://c"));
  EXPECT_EQ(parse_bucket_url("s3://models").prefix, "");
  EXPECT_EQ(parse_bucket_url("s3://models/run 7/ckpt//").bucket, "models");
  EXPECT_EQ(parse_bucket_url("s3://models/run 7/ckpt//").prefix, "run 7/ckpt");
  for (const char* odd : {"s3://", "s3:///a", "s3://a/../b", "s3://a//b", "s3://a/./b",
                          "s3://a@b/c", "s3://../b", "gs://a/b"}) {
    EXPECT_THROW(parse_bucket_url(odd), UsageError) << odd;
  }
}

TEST(BucketUrl, MayBeAWebServers) {
  const BucketUrl url = parse_bucket_url("https://host.lab:8443/runs/a%20b%2b+%C3%A9/");
  EXPECT_EQ(url.site(), "https://host.lab:8443");
  EXPECT_EQ(url.prefix, "runs/a b++\xc3\xa9");
  EXPECT_TRUE(url.is_web());
  EXPECT_EQ(parse_bucket_url("http://[::1]:80").bucket, "[::1]:80");
  EXPECT_EQ(parse_bucket_url("https://host").prefix, "");
  for (const char* odd :
       {"https://", "https:///a", "https://a@b/c", "https://a:b@c/d", "https://a/b?c",
        "https://a/b#c", "https://a/%2e%2e/b", "https://a/%", "https://a:b/c", "https://a:123456/c",
        "https://../b", "https://[::1/a", "https://[x]/a", "https://[::1]8/a", "https://a b/c"}) {
    EXPECT_THROW(parse_bucket_url(odd), UsageError) << odd;
  }
}

// Indexes of nginx 1.22, Apache 2.4 and Python 3.11, and the JSON of nginx and Caddy 2.
constexpr const char* kIndexOfNginx = R"(<html>
<head><title>Index of /x/</title></head>
<body>
<h1>Index of /x/</h1><hr><pre><a href="../">../</a>
<a href="global_step3/">global_step3/</a>     24-Nov-2026 10:00     -
<a href="a%20b%26c.pt">a b&amp;c.pt</a>       24-Nov-2026 10:00     9
<a href="latest">latest</a>                   24-Nov-2026 10:00     9
</pre><hr></body>
</html>)";
constexpr const char* kIndexOfApache = R"(<table><tr><th><a href="?C=N;O=D">Name</a></th></tr>
<tr><td><a href="/">Parent Directory</a></td></tr>
<tr><td><a href="a%20b&amp;c.pt">a b&amp;c.pt</a></td></tr>
<tr><td><A CLASS=x HREF='global_step3/'>global_step3/</A></td></tr>
<tr><td><a
href=latest>latest</a></td></tr></table>)";
constexpr const char* kIndexOfPython = R"(<ul>
<li><a href="a%20b%26c.pt">a b&amp;c.pt</a></li>
<li><a href="./global_step3/">global_step3/</a></li>
<li><a href="/x/latest#top">latest@</a></li>
<li><a href="http://h/x/latest">latest</a></li></ul>)";
constexpr const char* kJsonOfNginx = R"([
{ "name":"global_step3", "type":"directory", "mtime":"Tue, 24 Nov 2026 10:00:00 GMT" },
{ "name":"a b&c.pt", "type":"file", "mtime":"Tue, 24 Nov 2026 10:00:00 GMT", "size":9 },
{ "name":"latest", "type":"file", "mtime":"Tue, 24 Nov 2026 10:00:00 GMT", "size":9 }
])";
constexpr const char* kJsonOfCaddy =
    R"([{"name":"global_step3/","is_dir":true},{"name":"a b&c.pt","is_dir":false},{"name":"latest"}])";

TEST(WebIndex, HasWhatLiesInTheFolder) {
  const std::vector<WebEntry> expected{
      {"a b&c.pt", false}, {"global_step3", true}, {"latest", false}};
  for (const char* page :
       {kIndexOfNginx, kIndexOfApache, kIndexOfPython, kJsonOfNginx, kJsonOfCaddy}) {
    EXPECT_EQ(parse_web_index(page, "x"), expected) << page;
  }
}

TEST(WebIndex, HasNothingThatLiesElsewhere) {
  const char* const page = R"(
<a href="../a"><a href="/y/a"><a href="//h/x/a"><a href="/x/a/b"><a href="mailto:a"><a href="">
<a href="%2e%2e"><a href="a%2fb"><a href="%00"><a href="%z"><a href="."><a href><a href=><a =b>
<abbr href="b"><a title='<a href="c">'><b><a href='b)";
  // The last is cut, and names a file all the same; in the one before a tag is text.
  EXPECT_EQ(parse_web_index(page, "x"), (std::vector<WebEntry>{{"b", false}}));
  EXPECT_EQ(parse_web_index("", ""), std::vector<WebEntry>());
  EXPECT_EQ(parse_web_index("[]", ""), std::vector<WebEntry>());
  for (const char* odd :
       {"[1]", "[{}]", "[{\"name\":1}]", "[{\"name\":\"a/b\"}]", "[{\"name\":\"..\"}]", "["}) {
    EXPECT_THROW(parse_web_index(odd, ""), CorruptError) << odd;
  }
}

TEST(BucketUrl, IsEncodedAsSignaturesWantIt) {
  EXPECT_EQ(percent_encoded("a b+c/d~e\xc3\xa9*", "/"), "a%20b%2Bc/d~e%C3%A9%2A");
  EXPECT_EQ(percent_encoded("a/b"), "a%2Fb");
  EXPECT_EQ(percent_decoded("a+b%2Bc%c3%A9"), "a b+c\xc3\xa9");
  for (const char* odd : {"%", "%2", "a%zz"}) EXPECT_THROW(percent_decoded(odd), CorruptError);
}

// The reply of "ListObjectsV2", example "Listing keys", with another page to come.
TEST(Listing, IsReadAsDocumented) {
  const ListingPage page = parse_listing(R"(<?xml version="1.0" encoding="UTF-8"?>
<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">
  <Name>bucket</Name><Prefix/><KeyCount>205</KeyCount><MaxKeys>1000</MaxKeys>
  <IsTruncated>true</IsTruncated><NextContinuationToken>1ueGcxLPRx1Tr/XYExHnhbYLgveDs2J/w==</NextContinuationToken>
  <Contents><Key>my-image+.jpg</Key><LastModified>2009-10-12T17:50:30.250Z</LastModified>
    <ETag>"fba9dede5f27731c9771645a39863328"</ETag><Size>434234</Size><StorageClass>STANDARD</StorageClass></Contents>
  <CommonPrefixes><Prefix>photos/</Prefix></CommonPrefixes>
</ListBucketResult>)");
  ASSERT_EQ(page.objects.size(), 1u);
  EXPECT_EQ(page.objects[0].key, "my-image+.jpg");  // EncodingType is not url
  EXPECT_EQ(page.objects[0].etag, "fba9dede5f27731c9771645a39863328");
  EXPECT_EQ(page.objects[0].size, 434234u);
  EXPECT_EQ(page.objects[0].modified, 1255369830'250000000);
  EXPECT_EQ(page.prefixes, std::vector<std::string>{"photos/"});
  EXPECT_EQ(page.next, "1ueGcxLPRx1Tr/XYExHnhbYLgveDs2J/w==");
}

TEST(Listing, RefusesWhatIsNone) {
  const std::string begin = "<ListBucketResult>";
  const std::string end = "</ListBucketResult>";
  for (const std::string& odd :
       {std::string(), std::string("<html></html>"), std::string("{}"), begin,
        begin + "<IsTruncated>true</IsTruncated>" + end,
        begin + "<Contents><Key>a</Key><Size>-1</Size></Contents>" + end,
        begin + "<Contents><Key>a</Key><Size>99999999999999999999</Size></Contents>" + end,
        begin + "<Contents><Key>a</Key></Contents>" + end,
        begin + "<Contents><Size>1</Size></Contents>" + end,
        begin + "<EncodingType>url</EncodingType><Contents><Key>%</Key><Size>1</Size></Contents>" +
            end}) {
    EXPECT_THROW(parse_listing(odd), CorruptError) << odd;
  }
}

TEST(Listing, KnowsNoDatesThatDoNotFit) {
  const auto modified = [](const std::string& date) {
    return parse_listing("<ListBucketResult><Contents><Key>a</Key><Size>1</Size><LastModified>" +
                         date + "</LastModified></Contents></ListBucketResult>")
        .objects.at(0)
        .modified;
  };
  EXPECT_EQ(modified("2262-04-11T23:47:15Z"), 9223372035'000000000);
  for (const char* date : {"", "soon", "2263-01-01T00:00:00Z", "9999-12-31T23:59:59.999999999Z",
                           "0001-01-01T00:00:00Z"}) {
    EXPECT_EQ(modified(date), 0) << date;
  }
}

TEST(Listing, HasNoEntitiesThatGrow) {
  // Entities of a document type are not expanded.
  const ListingPage page = parse_listing(
      "<!DOCTYPE a [<!ENTITY b \"bbbb\">]><ListBucketResult><Contents><Key>&b;</Key>"
      "<Size>1</Size></Contents></ListBucketResult>");
  EXPECT_EQ(page.objects.at(0).key, "&b;");
}

TEST(Listing, SaysWhatAnErrorIs) {
  EXPECT_EQ(error_in("<Error><Code>NoSuchKey</Code><Message>not\nthere</Message></Error>"),
            "NoSuchKey: not\nthere");
  EXPECT_EQ(error_in("not xml"), "");
}

TEST(Listing, IsShownWithoutSecretsCutAndPrintable) {
  const std::vector<std::string_view> secrets{"AKIDOFTHETEST", "s3cr", "a/long+token=="};
  EXPECT_EQ(shown("not\nthere", secrets), "not\\nthere");
  EXPECT_EQ(shown("key AKIDOFTHETEST, s3cr!", secrets), "key ..., ...!");
  EXPECT_EQ(shown("akidofth and ONG+TOKE", secrets), "... and ...");
  EXPECT_EQ(shown("AKIDOFT, s3c", secrets), "AKIDOFT, s3c");  // shorter parts tell nothing
  EXPECT_EQ(shown(std::string(290, 'x') + "AKIDOFTHETEST", secrets), std::string(290, 'x') + "...");
  EXPECT_EQ(shown(std::string(1000, 'x'), secrets), std::string(300, 'x'));
  EXPECT_EQ(shown("", {}), "");
}

// The first ones as Amazon's documents have them, the last one as rclone 1.75 answers.
TEST(Listing, TakesUploadsByAnyName) {
  EXPECT_EQ(upload_id_in("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n"
                         "<InitiateMultipartUploadResult "
                         "xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"><Bucket>b</Bucket>"
                         "<UploadId>VXBsb2FkSUQ-</UploadId></InitiateMultipartUploadResult>"),
            "VXBsb2FkSUQ-");
  EXPECT_EQ(etag_in("  \n<CompleteMultipartUploadResult><ETag>&quot;3858f6-2&quot;</ETag>"
                    "</CompleteMultipartUploadResult>"),
            "3858f6-2");
  EXPECT_EQ(upload_id_in("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<InitiateMultipartUpload>\n"
                         "  <Bucket>models</Bucket>\n  <UploadId>f295a94c</UploadId>\n"
                         "</InitiateMultipartUpload>"),
            "f295a94c");
  for (const char* other : {"", "<html><body>Log in<br></body></html>", "<Error/>"}) {
    EXPECT_EQ(upload_id_in(other), "") << other;
    EXPECT_EQ(etag_in(other), "") << other;
  }
}

class SharedSettingsTest : public testing::Test {
 protected:
  void write(const char* file, const std::string& text) { folder_.write(file, text); }
  SharedSettings read() {
    return read_shared_settings([this](const char* name) -> const char* {
      const auto found = values_.find(name);
      return found == values_.end() ? nullptr : found->second.c_str();
    });
  }

  test::TempFolder folder_;
  std::map<std::string, std::string> values_{
      {"AWS_SHARED_CREDENTIALS_FILE", (folder_.path() / "credentials").string()},
      {"AWS_CONFIG_FILE", (folder_.path() / "config").string()}};
};

TEST_F(SharedSettingsTest, AreOfOneProfile) {
  write("credentials",
        "[default]\naws_access_key_id = A\naws_secret_access_key = B=/+\n# c\n"
        "[lab]\r\naws_access_key_id=C\r\naws_secret_access_key=D\r\naws_session_token = E\r\n");
  write("config",
        "[default]\nregion = eu-west-1\n[profile lab]\nendpoint_url = http://lab:9000\ns3 =\n"
        "  region = nested\n");
  const SharedSettings usual = read();
  ASSERT_NE(usual.credentials, nullptr);
  EXPECT_EQ(usual.credentials->secret, "B=/+");
  EXPECT_EQ(usual.region, "eu-west-1");
  values_["AWS_PROFILE"] = "lab";
  const SharedSettings lab = read();
  ASSERT_NE(lab.credentials, nullptr);
  EXPECT_EQ(lab.credentials->key, "C");
  EXPECT_EQ(lab.credentials->token, "E");
  EXPECT_EQ(lab.endpoint, "http://lab:9000");
  EXPECT_EQ(lab.region, "");
  values_["AWS_PROFILE"] = "other";
  EXPECT_THROW(read(), UsageError);
}

TEST_F(SharedSettingsTest, MayBeAbsent) {
  EXPECT_EQ(read().credentials, nullptr);
  write("credentials", "[default]\naws_access_key_id = A\n");
  EXPECT_EQ(read().credentials, nullptr);
  write("config", std::string(2 << 20, '#'));
  EXPECT_THROW(read(), IoError);
}

}  // namespace
}  // namespace dsckpt
