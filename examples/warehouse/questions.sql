-- Ten questions to the views of `ingestd models`. Each runs on PostgreSQL, ClickHouse and DuckDB.
-- In PostgreSQL and DuckDB, dates are those of UTC whatever the time zone of the session.

-- revenue by campaign and day: by the model of each order
SELECT day, currency, channel, source, medium, name, sum(orders) AS orders, sum(net) AS net
FROM ingestd.net_revenue_by_campaign_day WHERE tenant = 'shop' AND is_credited
GROUP BY day, currency, channel, source, medium, name ORDER BY day, currency, channel, source, medium, name;

-- funnel: sessions with each step after the one before
WITH steps AS (SELECT session_id, 1 AS step, event_at FROM ingestd.product_viewed WHERE tenant = 'shop'
  UNION ALL SELECT session_id, 2 AS step, event_at FROM ingestd.product_added WHERE tenant = 'shop'
  UNION ALL SELECT session_id, 3 AS step, event_at FROM ingestd.order_completed WHERE tenant = 'shop'),
times AS (SELECT session_id, min(CASE WHEN step = 1 THEN event_at END) AS t1,
  max(CASE WHEN step = 2 THEN event_at END) AS t2, max(CASE WHEN step = 3 THEN event_at END) AS t3
  FROM steps GROUP BY session_id)
SELECT count(t1) AS viewed, count(CASE WHEN t2 >= t1 THEN 1 END) AS added,
  count(CASE WHEN t2 >= t1 AND t3 >= t2 THEN 1 END) AS ordered FROM times;

-- sessions a user
SELECT user_id, count(*) AS sessions, sum(page_views) AS page_views, sum(orders) AS orders
FROM ingestd.sessions WHERE tenant = 'shop' AND user_id IS NOT NULL GROUP BY user_id ORDER BY sessions DESC, user_id;

-- retention: of the visitors of a week, how many came again after so many weeks
SELECT CAST(date_trunc('week', v.first_seen_on) AS date) AS cohort, floor((s.started_on - v.first_seen_on) / 7) AS week,
  count(DISTINCT s.anonymous_id) AS visitors
FROM ingestd.sessions AS s JOIN ingestd.visitors AS v ON v.tenant = s.tenant AND v.anonymous_id = s.anonymous_id
WHERE s.tenant = 'shop' GROUP BY cohort, week ORDER BY cohort, week;

-- models beside each other
SELECT currency, channel, source, sum(CASE WHEN model = 'last_touch' THEN net ELSE 0 END) AS last_touch,
  sum(CASE WHEN model = 'first_touch' THEN net ELSE 0 END) AS first_touch,
  sum(CASE WHEN model = 'linear' THEN net ELSE 0 END) AS linear,
  sum(CASE WHEN model = 'position_based' THEN net ELSE 0 END) AS position_based,
  sum(CASE WHEN model = 'time_decay' THEN net ELSE 0 END) AS time_decay
FROM ingestd.attribution_credits WHERE tenant = 'shop'
GROUP BY currency, channel, source ORDER BY currency, channel, source;

-- refunds by product: without refunds that took nothing back, such as a repeated one
SELECT p.name AS product, r.currency AS currency, count(DISTINCT r.attribution_id) AS orders, sum(p.amount) AS amount
FROM ingestd.order_refunded_products AS p JOIN ingestd.reversals AS r ON r.cause_event_id = p.event_id
WHERE p.tenant = 'shop' AND r.reason = 'refund' GROUP BY product, currency ORDER BY product, currency;

-- top products: of orders that count, each once
SELECT p.name AS product, o.currency AS currency, sum(coalesce(p.quantity, 1)) AS pieces,
  coalesce(sum(p.amount), 0) AS amount
FROM ingestd.order_completed_products AS p JOIN ingestd.orders AS o ON o.order_event_id = p.event_id
WHERE p.tenant = 'shop' GROUP BY product, currency ORDER BY amount DESC, product, currency LIMIT 10;

-- time to purchase: days from the first visit to the first order
SELECT o.received_on - v.first_seen_on AS days, count(*) AS orders
FROM ingestd.orders AS o JOIN ingestd.visitors AS v ON v.tenant = o.tenant AND v.anonymous_id = o.anonymous_id
WHERE o.tenant = 'shop' AND o.is_first GROUP BY days ORDER BY days;

-- first and returning customers: by month; orders of forgotten persons count as neither
SELECT CAST(date_trunc('month', received_on) AS date) AS month, currency, count(CASE WHEN is_first THEN 1 END) AS first,
  count(CASE WHEN NOT is_first THEN 1 END) AS returning_, sum(CASE WHEN is_first THEN net ELSE 0 END) AS first_net,
  sum(CASE WHEN NOT is_first THEN net ELSE 0 END) AS returning_net
FROM ingestd.orders WHERE tenant = 'shop' GROUP BY month, currency ORDER BY month, currency;

-- abandoned carts: sessions that put something into a cart and ordered nothing afterwards
WITH carts AS (SELECT session_id, max(event_at) AS filled FROM ingestd.product_added
  WHERE tenant = 'shop' GROUP BY session_id),
bought AS (SELECT session_id, max(event_at) AS ordered FROM ingestd.order_completed
  WHERE tenant = 'shop' GROUP BY session_id)
SELECT count(*) AS carts, count(CASE WHEN b.ordered >= c.filled THEN 1 END) AS bought,
  count(*) - count(CASE WHEN b.ordered >= c.filled THEN 1 END) AS abandoned
FROM carts AS c LEFT JOIN bought AS b ON b.session_id = c.session_id;
