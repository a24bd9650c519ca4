-- The schema of the shared store, version 2. {schema} and {logged} are filled in when it is made.
--
-- A state is a row: the rule that it was written under, when it may be forgotten, and its numbers (a cell; a counter's end of the
-- next window, previous and current; the times of a log's units, oldest first), in nanoseconds since 1970. What an outcome means
-- for the caller is worked out by the same code as in any other store; here is only what must happen where the count is.

CREATE SCHEMA IF NOT EXISTS {schema};

CREATE TABLE IF NOT EXISTS {schema}.meta (name text PRIMARY KEY, value bigint NOT NULL);

-- No index but the key: an update then touches the row's own page only. Passed rows are found page by page.
CREATE {logged} TABLE IF NOT EXISTS {schema}.counts (
    key bytea PRIMARY KEY, rule text NOT NULL, ends bigint NOT NULL, numbers bigint[] NOT NULL
) WITH (fillfactor = 70);

CREATE OR REPLACE FUNCTION {schema}.clock() RETURNS bigint LANGUAGE sql VOLATILE AS
$$ SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint * 1000 $$;

-- A counter as of `now`: start of the window, previous, current.
CREATE OR REPLACE FUNCTION {schema}.rolled(numbers bigint[], now bigint, win bigint, phase bigint) RETURNS bigint[]
LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    start bigint := now - (now - phase) % win;
    was bigint := numbers[1] - 2 * win;
BEGIN
    IF was >= start THEN RETURN ARRAY[was, numbers[2], numbers[3]]; END IF;
    IF was + win = start THEN RETURN ARRAY[start, numbers[3], 0]; END IF;
    RETURN ARRAY[start, 0, 0];
END $$;

-- The numbers of a log that are in the window.
CREATE OR REPLACE FUNCTION {schema}.live(numbers bigint[], now bigint, win bigint) RETURNS bigint[]
LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    at bigint := greatest(now, numbers[cardinality(numbers)]);
BEGIN
    FOR i IN 1 .. cardinality(numbers) LOOP
        IF numbers[i] + win > at THEN RETURN numbers[i:]; END IF;
    END LOOP;
    RETURN '{}';
END $$;

-- How many charges fit that leave `spare` units over, up to `most`.
CREATE OR REPLACE FUNCTION {schema}.fit(shape text, numbers bigint[], now bigint, increment bigint, capacity bigint, win bigint,
    phase bigint, units bigint, cost bigint, spare_increment bigint, spare bigint, most bigint) RETURNS bigint
LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    anchor bigint := now;
    c bigint[];
    room numeric;
    each numeric := increment;
BEGIN
    IF cost = 0 AND spare = 0 THEN RETURN most; END IF;
    IF shape = 'cell' THEN
        IF win > 0 THEN anchor := now - (now - phase) % win + win; END IF;
        room := anchor + capacity - greatest(numbers[1], anchor) - spare_increment;
    ELSIF shape = 'counter' THEN
        c := {schema}.rolled(numbers, now, win, phase);
        room := (units - c[3] - spare)::numeric * win - c[2]::numeric * (win - (greatest(now, c[1]) - c[1]));
        each := cost::numeric * win;
    ELSE
        room := units - cardinality({schema}.live(numbers, now, win)) - spare;
        each := cost;
    END IF;
    IF room < 0 THEN RETURN 0; END IF;
    IF cost = 0 THEN RETURN most; END IF;
    RETURN least(most, div(room, each))::bigint;
END $$;

-- The numbers after `n` charges.
CREATE OR REPLACE FUNCTION {schema}.charged(shape text, numbers bigint[], now bigint, increment bigint, capacity bigint, win bigint,
    phase bigint, units bigint, cost bigint, n bigint) RETURNS bigint[]
LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    anchor bigint := now;
    span bigint := 1::bigint << 60;
    c bigint[];
BEGIN
    IF shape = 'cell' THEN
        IF n = 0 THEN RETURN numbers; END IF;
        IF win > 0 THEN
            anchor := now - (now - phase) % win + win;
            span := capacity;
        END IF;
        -- What is owed goes no further than a window's end, or the longest span that there is.
        RETURN ARRAY[least(greatest(numbers[1], anchor) + increment::numeric * n, greatest(anchor + span, numbers[1]))::bigint];
    ELSIF shape = 'counter' THEN
        c := {schema}.rolled(numbers, now, win, phase);
        RETURN ARRAY[c[1] + 2 * win, c[2], c[3] + n * cost];
    END IF;
    c := {schema}.live(numbers, now, win);
    c := c || array_fill(greatest(now, numbers[cardinality(numbers)]), ARRAY[least(n * cost, units)::int]);
    -- What is owed beyond the limit takes the place of the oldest.
    RETURN c[greatest(1, cardinality(c) - units + 1):];
END $$;

-- The numbers of a cell or counter after the return of a charge that was made at `charged`.
CREATE OR REPLACE FUNCTION {schema}.refunded(shape text, numbers bigint[], now bigint, increment bigint, capacity bigint, win bigint,
    phase bigint, cost bigint, charged bigint) RETURNS bigint[]
LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    anchor bigint := now;
    owed bigint := least(increment, capacity);
    c bigint[];
BEGIN
    IF cardinality(numbers) = 0 THEN RETURN numbers; END IF;
    IF shape = 'cell' THEN
        IF win > 0 THEN anchor := now - (now - phase) % win + win; END IF;
        IF numbers[1] <= anchor THEN RETURN numbers; END IF;
        IF win = 0 THEN
            -- What has leaked away since is not given back.
            owed := greatest(0, owed - (now - charged));
        ELSIF charged - (charged - phase) % win + win <> anchor THEN
            RETURN numbers;
        END IF;
        RETURN ARRAY[greatest(anchor, numbers[1] - owed)];
    END IF;
    c := {schema}.rolled(numbers, now, win, phase);
    IF charged >= c[1] THEN c[3] := greatest(0, c[3] - cost);
    ELSIF charged + win >= c[1] THEN c[2] := greatest(0, c[2] - cost);
    END IF;
    RETURN ARRAY[c[1] + 2 * win, c[2], c[3]];
END $$;

-- Decides a demand, all or nothing, in one statement. `how` is '', 'owe' to charge whatever it comes to, 'back' to give back what was
-- charged at `charged_or_null`, or 'put' to do no more than replace.
-- `now_or_null` is for tests: else this server's clock decides. `expected` and
-- the arrays after it are empty, or say for each key which rule and numbers must be there, and what takes their place.
--
-- Gives whether it was done (every state was of the charge's rule, or as expected; if not, nothing was), how many times, when, and
-- for each key the rule ('' for the charge's own) and the numbers that were there.
CREATE OR REPLACE FUNCTION {schema}.decide(times bigint, how text, charged_or_null bigint, now_or_null bigint, keys bytea[], rules text[], shapes text[],
    increments bigint[], capacities bigint[], wins bigint[], phases bigint[], units bigint[], costs bigint[],
    spare_increments bigint[], spares bigint[], expected text[], expected_numbers text[], replacements text[],
    OUT done boolean, OUT admitted bigint, OUT now bigint, OUT rules_found text[], OUT numbers_found text[])
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    size int := cardinality(keys);
    held {schema}.counts[];
    row_of {schema}.counts;
    states bigint[][];
    state bigint[];
    state_texts text[];
BEGIN
    -- First without locks: what is refused, or only looked at, writes nothing.
    FOR turn IN 1 .. 100 LOOP
        held := array_fill(NULL::{schema}.counts, ARRAY[size]);
        IF turn = 1 THEN
            FOR row_of IN SELECT * FROM {schema}.counts c WHERE c.key = ANY (keys) LOOP
                held[array_position(keys, row_of.key)] := row_of;
            END LOOP;
        ELSE
            -- In one order for everybody.
            INSERT INTO {schema}.counts SELECT k, '', 0, '{}' FROM unnest(keys) k ORDER BY k ON CONFLICT (key) DO NOTHING;
            FOR row_of IN SELECT * FROM {schema}.counts c WHERE c.key = ANY (keys) ORDER BY c.key FOR UPDATE LOOP
                held[array_position(keys, row_of.key)] := row_of;
            END LOOP;
            -- One that was reaped between is made again.
            CONTINUE WHEN array_position(held, NULL::{schema}.counts) IS NOT NULL;
        END IF;
        now := coalesce(now_or_null, {schema}.clock());
        done := true;
        admitted := times;
        rules_found := array_fill(''::text, ARRAY[size]);
        numbers_found := rules_found;
        state_texts := rules_found;
        FOR i IN 1 .. size LOOP
            row_of := held[i];
            state := coalesce(row_of.numbers, '{}');
            numbers_found[i] := array_to_string(state, ' ');
            IF state <> '{}' AND row_of.rule <> rules[i] THEN rules_found[i] := row_of.rule; END IF;
            IF cardinality(expected) > 0 THEN
                done := done AND expected[i] = rules_found[i] AND expected_numbers[i] = numbers_found[i];
                state_texts[i] := replacements[i];
            ELSE
                done := done AND rules_found[i] = '';
                state_texts[i] := numbers_found[i];
            END IF;
        END LOOP;
        IF NOT done THEN
            admitted := 0;
            RETURN;
        END IF;
        FOR i IN 1 .. size LOOP
            state := string_to_array(state_texts[i], ' ')::bigint[];
            IF how = '' THEN
                admitted := least(admitted, {schema}.fit(shapes[i], state, now, increments[i], capacities[i], wins[i], phases[i],
                    units[i], costs[i], spare_increments[i], spares[i], times));
            END IF;
        END LOOP;
        CONTINUE WHEN turn = 1 AND (how IN ('put', 'back') OR (admitted > 0 AND (SELECT max(c) FROM unnest(costs) c) > 0));
        IF turn > 1 THEN
            FOR i IN 1 .. size LOOP
                state := string_to_array(state_texts[i], ' ')::bigint[];
                CONTINUE WHEN how IN ('', 'owe') AND (admitted = 0 OR costs[i] = 0);
                state := CASE how
                    WHEN 'put' THEN state
                    WHEN 'back' THEN {schema}.refunded(shapes[i], state, now, increments[i], capacities[i], wins[i], phases[i],
                        costs[i], least(now, coalesce(charged_or_null, now)))
                    ELSE {schema}.charged(shapes[i], state, now, increments[i], capacities[i], wins[i], phases[i], units[i],
                        costs[i], admitted) END;
                UPDATE {schema}.counts c SET rule = rules[i], numbers = state,
                    ends = coalesce(CASE WHEN shapes[i] = 'log' THEN state[cardinality(state)] + wins[i] ELSE state[1] END, 0)
                    WHERE c.key = keys[i];
            END LOOP;
        END IF;
        rules_found := array_fill(''::text, ARRAY[size]);
        numbers_found := state_texts;
        RETURN;
    END LOOP;
    RAISE EXCEPTION 'keys are reaped as fast as they are made';
END $$;

-- Takes away rows that ended before `until`, in pages [page, page + pages) of the table; rows that are in use are left.
CREATE OR REPLACE FUNCTION {schema}.reap(page bigint, pages bigint, until bigint) RETURNS bigint
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    gone bigint;
BEGIN
    DELETE FROM {schema}.counts WHERE ctid = ANY (ARRAY(
        SELECT c.ctid FROM {schema}.counts c
        WHERE c.ctid >= format('(%s,0)', page)::tid AND c.ctid < format('(%s,0)', page + pages)::tid AND c.ends <= until
        FOR UPDATE SKIP LOCKED));
    GET DIAGNOSTICS gone = ROW_COUNT;
    RETURN gone;
END $$;
