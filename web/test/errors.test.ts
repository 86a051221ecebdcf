import { expect, test } from "vitest";
import { refusal } from "../src/api/errors";

test("a refusal says what the server said", () => {
  const body = JSON.stringify({ error: { message: "the body is too large", code: "too_large" } });
  expect(refusal(413, body, null)).toMatchObject({
    status: 413,
    message: "the body is too large",
    code: "too_large",
    retryAfterSeconds: null,
  });
});

test.each([
  "",
  "<html>Bad Gateway</html>",
  "null",
  '{"error": "text"}',
  '{"error": {"message": 3}}',
])("a body that is not the server's own (%s) still gets a sentence", (body) => {
  expect(refusal(502, body, null).message).toBe("The server answered with status 502");
});

test("the time to try again is in whole seconds, and nothing where it is not a number", () => {
  expect(refusal(429, "", "2.2").retryAfterSeconds).toBe(3);
  expect(refusal(429, "", "0").retryAfterSeconds).toBe(0);
  expect(refusal(429, "", "").retryAfterSeconds).toBeNull();
  expect(refusal(429, "", "Wed, 21 Oct 2026 07:28:00 GMT").retryAfterSeconds).toBeNull();
});
